-- Ends every session of all workers.
select pg_terminate_backend(a.pid) from pg_stat_activity a
where a.datname = current_database() and a.application_name like 'keyline %'
