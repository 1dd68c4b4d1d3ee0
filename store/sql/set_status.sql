update {{.schema}}.consumers
set status = $2, sweep = $3, sweep_record = 0, updated_at = clock_timestamp()
where id = $1
