-- Sessions of clients in this database, but for the benchmark's own.
select count(*) from pg_stat_activity
where datname = current_database() and backend_type = 'client backend' and application_name <> 'keyline bench'
