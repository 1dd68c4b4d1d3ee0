-- What in a schema ($1) has one of the names ($2), whatever made it.
select pg_catalog.pg_describe_object(o.class, o.object, 0)
from (
  select c.tableoid, c.oid, c.relname from pg_catalog.pg_class c where c.relnamespace = pg_catalog.to_regnamespace($1)
  union all
  select p.tableoid, p.oid, p.proname from pg_catalog.pg_proc p where p.pronamespace = pg_catalog.to_regnamespace($1)
  union all
  select t.tableoid, t.oid, t.typname from pg_catalog.pg_type t
  where t.typnamespace = pg_catalog.to_regnamespace($1) and t.typtype in ('e', 'd', 'r')
) o (class, object, name)
where o.name = any ($2)
order by 1
