-- Whether any of this database stand in line to notify: NOTIFY queues all commits of the server behind one lock on "database 0", which
-- pg_locks shows like any other. Whose a session is, is asked of those alone that wait.
select exists (
  select from pg_catalog.pg_locks l, lateral pg_catalog.pg_stat_get_activity(l.pid) s
  where l.locktype = 'object' and l.database = 0 and l.classid = 'pg_catalog.pg_database'::regclass and l.objid = 0 and not l.granted
    and s.datid = (select d.oid from pg_catalog.pg_database d where d.datname = current_database()))
