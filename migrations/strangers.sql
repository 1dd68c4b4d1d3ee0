-- What a schema ($1) holds beside the names that migrations make ($2), and what outside of it depends on it. Each is
-- described as PostgreSQL describes it to the one who asks. That an outbox forwards into it, PostgreSQL does not know.
with
inside as (
  -- What belongs to something else (a table's row type, an index, an identity's sequence) goes with that.
  select c.tableoid as class, c.oid as object, c.relname as name
  from pg_catalog.pg_class c
  where c.relnamespace = $1::text::regnamespace and c.relkind in ('r', 'p', 'v', 'm', 'f', 'S', 'c')
    and not exists (
      select from pg_catalog.pg_depend d where d.classid = c.tableoid and d.objid = c.oid and d.objsubid = 0
        and d.refclassid = 'pg_catalog.pg_class'::regclass and d.deptype in ('a', 'i'))
  union all
  select p.tableoid, p.oid, p.proname from pg_catalog.pg_proc p where p.pronamespace = $1::text::regnamespace
  union all
  select t.tableoid, t.oid, t.typname
  from pg_catalog.pg_type t
  where t.typnamespace = $1::text::regnamespace and t.typtype in ('e', 'd', 'r')
),
parts as (
  select class, object from inside
  union all
  select t.tableoid, t.oid from pg_catalog.pg_type t where t.typnamespace = $1::text::regnamespace
),
-- The namespace of what depends: a rule, a constraint, a trigger or a default is where its table is.
outside as (
  select d.classid, d.objid, d.objsubid, coalesce(
      (select r.relnamespace from pg_catalog.pg_class r where d.classid = 'pg_catalog.pg_class'::regclass and r.oid = d.objid),
      (select p.pronamespace from pg_catalog.pg_proc p where d.classid = 'pg_catalog.pg_proc'::regclass and p.oid = d.objid),
      (select t.typnamespace from pg_catalog.pg_type t where d.classid = 'pg_catalog.pg_type'::regclass and t.oid = d.objid),
      (select r.relnamespace from pg_catalog.pg_rewrite w join pg_catalog.pg_class r on r.oid = w.ev_class
       where d.classid = 'pg_catalog.pg_rewrite'::regclass and w.oid = d.objid),
      (select o.connamespace from pg_catalog.pg_constraint o where d.classid = 'pg_catalog.pg_constraint'::regclass and o.oid = d.objid),
      (select r.relnamespace from pg_catalog.pg_trigger g join pg_catalog.pg_class r on r.oid = g.tgrelid
       where d.classid = 'pg_catalog.pg_trigger'::regclass and g.oid = d.objid),
      (select r.relnamespace from pg_catalog.pg_attrdef f join pg_catalog.pg_class r on r.oid = f.adrelid
       where d.classid = 'pg_catalog.pg_attrdef'::regclass and f.oid = d.objid),
      (select r.relnamespace from pg_catalog.pg_policy y join pg_catalog.pg_class r on r.oid = y.polrelid
       where d.classid = 'pg_catalog.pg_policy'::regclass and y.oid = d.objid)) as namespace
  from pg_catalog.pg_depend d
  join parts on parts.class = d.refclassid and parts.object = d.refobjid
  where d.deptype in ('n', 'a')
)
select pg_catalog.pg_describe_object(class, object, 0) from inside where name <> all ($2)
union
select pg_catalog.pg_describe_object(classid, objid, objsubid) from outside
where namespace <> $1::text::regnamespace and namespace <> 'pg_toast'::regnamespace
union
select pg_catalog.pg_describe_object(t.tableoid, t.oid, 0) || ', which appends (`keyline outbox back` ends that)'
from pg_catalog.pg_trigger t join pg_catalog.pg_proc p on p.oid = t.tgfoid
where t.tgname = 'zz_keyline_3_forward' and p.prosrc ~ ('\m' || $1 || '\.append\(')
order by 1
