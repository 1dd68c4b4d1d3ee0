-- The fence of a dead letter's retry.
update {{.schema}}.dead_letters d set attempt = d.attempt
where d.id = $1 and d.attempt = $2 and coalesce(d.status, '') = 'retrying' -- not a partial index's condition
returning pg_current_xact_id()::text
