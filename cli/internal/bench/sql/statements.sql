-- Statements that clients have sent to this database, but for what begins and ends transactions: of what is sent
-- prepared the server counts that the first time only (as of PostgreSQL 15).
select coalesce(sum(s.calls), 0)::bigint
from pg_stat_statements s join pg_database d on d.oid = s.dbid
where d.datname = current_database() and s.toplevel and s.query !~* '^\s*(begin|start transaction|commit|rollback(?!\s+to))'
