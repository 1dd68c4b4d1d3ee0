-- The limits of connections and how many are used of each; Keyline's own. -1: no limit.
select current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint
    - coalesce(current_setting('reserved_connections', true), '0')::bigint,
  (select count(*) from pg_stat_activity a where a.backend_type = 'client backend'),
  d.datconnlimit::bigint, (select count(*) from pg_stat_activity a where a.datname = d.datname),
  r.rolconnlimit::bigint, (select count(*) from pg_stat_activity a where a.usename = r.rolname),
  (select count(*) from pg_stat_activity a where a.datname = d.datname and a.application_name like 'keyline %')
from pg_database d, pg_roles r
where d.datname = current_database() and r.rolname = current_user
