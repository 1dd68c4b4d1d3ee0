-- Other sessions of clients in this database.
select count(*) from pg_stat_activity
where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()
