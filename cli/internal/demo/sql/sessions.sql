-- The sessions of a worker process.
select count(*) from pg_stat_activity where datname = current_database() and application_name = 'keyline ' || $1
