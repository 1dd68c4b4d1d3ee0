-- As in version 1, but asked for once in a session: where the server is a primary, it keeps its timeline until it is one no more, and
-- every claim, flush and HandleTx asks. What a standby says (0) may be otherwise after its promotion, which its sessions live through.
create or replace function {{.schema}}.timeline() returns integer language plpgsql as $$
declare
  known text := pg_catalog.current_setting('keyline.timeline_of_session', true);
begin
  if known <> '' then
    return known::integer;
  end if;
  begin
    known := ('x' || left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 8))::bit(32)::integer;
  exception when others then
    return 0;
  end;
  perform pg_catalog.set_config('keyline.timeline_of_session', known, false);
  return known::integer;
end
$$;

-- As in version 1, but the registry's epoch jumps with the tokens. A worker that lived through the failover knows the registry as it was;
-- where its last changes are lost, an epoch that it has seen would come again and say something else, and one that is lower it
-- would never read.
create or replace function {{.schema}}.keep_timeline() returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform from {{.schema}}.meta m where m.timeline <> {{.schema}}.timeline();
  if not found then
    return false;
  end if;
  update {{.schema}}.meta m set timeline = {{.schema}}.timeline(), registry_epoch = m.registry_epoch + 1000000
    where m.timeline <> {{.schema}}.timeline();
  if not found then
    return false; -- another worker was first
  end if;
  perform setval('{{.schema}}.tokens', t.last_value + 1000000000) from {{.schema}}.tokens t;
  return true;
end
$$;
