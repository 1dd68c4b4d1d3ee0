-- Sessions of this database that sit in an open transaction, the longest first.
select a.pid, coalesce(nullif(a.application_name, ''), a.usename, '?'), extract(epoch from clock_timestamp() - a.state_change)::double precision
from pg_stat_activity a
where a.datname = current_database() and a.state like 'idle in transaction%' and a.pid <> pg_backend_pid()
  and a.state_change < clock_timestamp() - make_interval(secs => $1::double precision)
order by a.state_change limit 100
