insert into {{.schema}}.workers (name, instance, host, pid, lease, consumers)
values ($1, $2, $3, $4, $5, $6)
returning id
