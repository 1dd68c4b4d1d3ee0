update {{.schema}}.workers set status = 'left', ended_at = clock_timestamp() where id = $1 and status = 'live'
