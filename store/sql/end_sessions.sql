-- Ends all sessions of this process but the one that says so: those that it has lost
-- touch with may hold locks for as long as the server believes in them.
select pg_terminate_backend(a.pid) from pg_stat_activity a
where a.application_name = $1 and a.pid <> pg_backend_pid()
