-- NOTIFY queues commits behind one lock on "database 0", which pg_locks shows like any other.
select exists (
  select from pg_catalog.pg_locks l
  where l.locktype = 'object' and l.database = 0 and l.classid = 'pg_catalog.pg_database'::regclass and l.objid = 0 and not l.granted)
