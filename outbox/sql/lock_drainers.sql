select pg_advisory_xact_lock({{.Fn "lock_key"}}());
