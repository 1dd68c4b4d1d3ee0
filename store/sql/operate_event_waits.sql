-- The deliveries of an event that a retry can help: open dead letters, and heads in backoff or parked.
select c.id, c.name, coalesce(d.id, 0)
from {{.schema}}.consumers c
left join {{.schema}}.dead_letters d on d.record_id = $1 and d.seq = $2 and d.consumer_id = c.id and d.status = 'open'
left join {{.schema}}.checkpoints k on k.record_id = $1 and k.consumer_id = c.id and k.seq = $2 - 1 and k.state in ('backoff', 'parked')
where c.status not in ('disabled', 'retired') and (d.id is not null or k.seq is not null)
order by c.id
