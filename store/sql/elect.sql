select pg_advisory_lock({{.schema}}.seat_key())
