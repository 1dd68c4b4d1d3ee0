-- A new incarnation of a process that was asked to drain is asked too: fencing itself did not answer that.
insert into {{.schema}}.workers (name, instance, host, pid, lease, consumers, drain_at)
values ($1, $2, $3, $4, $5, $6, (select max(w.drain_at) from {{.schema}}.workers w where w.instance = $2))
returning id
