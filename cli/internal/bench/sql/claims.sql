-- How often records were claimed, and what that has taken.
select coalesce(sum(s.calls), 0)::float8, coalesce(sum(s.total_exec_time), 0)::float8
from pg_stat_statements s join pg_database d on d.oid = s.dbid
where d.datname = current_database() and s.toplevel and s.query like '%.claim(%'
