-- Commits in this database, and how far the log has been written.
select xact_commit, (pg_current_wal_insert_lsn() - '0/0')::bigint from pg_stat_database where datname = current_database()
