select {{.schema}}.lock_record($1)
