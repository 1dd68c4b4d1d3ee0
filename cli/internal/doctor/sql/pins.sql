-- What keeps vacuum from removing rows that died since: transactions, prepared transactions, replication slots, standbys.
select x.kind, x.name, x.xids, x.seconds
from (
  select 'the transaction of' as kind, 'pid ' || a.pid || ' (' || coalesce(nullif(a.application_name, ''), a.usename, '?') || ')' as name,
    greatest(age(a.backend_xmin), age(a.backend_xid))::bigint as xids, extract(epoch from clock_timestamp() - a.xact_start)::double precision as seconds
  from pg_stat_activity a
  where (a.datname = current_database() or a.backend_type = 'walsender') and a.backend_type in ('client backend', 'walsender')
    and a.pid <> pg_backend_pid() and (a.backend_xmin is not null or a.backend_xid is not null)
  union all
  select 'prepared transaction', p.gid, age(p.transaction), extract(epoch from clock_timestamp() - p.prepared)::double precision
  from pg_prepared_xacts p where p.database = current_database()
  union all
  select 'replication slot', s.slot_name::text, greatest(age(s.xmin), age(s.catalog_xmin)), null
  from pg_replication_slots s where s.xmin is not null or s.catalog_xmin is not null) x
where x.xids > $1::bigint or x.seconds > $2::double precision
order by x.xids desc limit 100
