select pg_advisory_xact_lock({{.schema}}.barrier_key())
