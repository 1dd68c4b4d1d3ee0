-- The fence of a dead letter's retry.
update {{.schema}}.dead_letters d set attempt = d.attempt
where d.id = $1 and d.attempt = $2 and d.status = 'retrying'
