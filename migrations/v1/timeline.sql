-- The server's timeline, which a failover changes; 0 where the server does not say.
-- A standby that took over may lack the last commits, and so claims, workers and tokens that were drawn.
create function {{.schema}}.timeline() returns integer language plpgsql as $$
begin
  return ('x' || left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 8))::bit(32)::integer;
exception when others then
  return 0;
end
$$;

alter table {{.schema}}.meta add column timeline integer not null default {{.schema}}.timeline();
-- The one on which the worker joined: on another it neither claims nor renews, and has to join again.
alter table {{.schema}}.workers add column timeline integer not null default {{.schema}}.timeline();

-- Every worker calls this before it joins. The first one on another timeline lets the tokens jump, beyond
-- all that may have been drawn on the one before: a claim that is lost with it must not come to life again
-- by a second claim's having the same token. Answers whether it did.
create function {{.schema}}.keep_timeline() returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform from {{.schema}}.meta m where m.timeline <> {{.schema}}.timeline();
  if not found then
    return false;
  end if;
  update {{.schema}}.meta m set timeline = {{.schema}}.timeline() where m.timeline <> {{.schema}}.timeline();
  if not found then
    return false; -- another worker was first
  end if;
  perform setval('{{.schema}}.tokens', t.last_value + 1000000000) from {{.schema}}.tokens t;
  return true;
end
$$;
revoke all on function {{.schema}}.keep_timeline() from public;
