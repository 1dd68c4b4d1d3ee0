-- Statements that clients have sent to this database.
select coalesce(sum(s.calls), 0)::bigint
from pg_stat_statements s join pg_database d on d.oid = s.dbid
where d.datname = current_database() and s.toplevel
