-- As version 1 has them.
create or replace function {{.schema}}.timeline() returns integer language plpgsql as $$
begin
  return ('x' || left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 8))::bit(32)::integer;
exception when others then
  return 0;
end
$$;

create or replace function {{.schema}}.keep_timeline() returns boolean
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
