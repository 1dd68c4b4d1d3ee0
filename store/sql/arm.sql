select pg_advisory_lock({{.schema}}.arm_key())
