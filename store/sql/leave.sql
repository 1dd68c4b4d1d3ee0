-- $2: handlers of it still run, so that its claims are kept for a lease more (see recover).
update {{.schema}}.workers
set status = 'left', ended_at = clock_timestamp() + case when $2::boolean then lease else interval '0' end
where id = $1 and instance = $3 and status = 'live'
