-- Ends a session of this process whose client is gone.
select pg_terminate_backend(a.pid) from pg_stat_activity a
where a.pid = $1::bigint and a.application_name = $2 and a.pid <> pg_backend_pid()
