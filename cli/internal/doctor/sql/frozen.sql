select age(d.datfrozenxid)::bigint from pg_database d where d.datname = current_database()
