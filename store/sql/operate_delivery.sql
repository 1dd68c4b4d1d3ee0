-- Where a consumer stands to an event, and the dead letter that it may have of it.
select c.id, c.status, coalesce(k.seq, greatest(r.cursor, m.cursor)), coalesce(k.state, 'ready'), coalesce(d.id, 0), coalesce(d.status, '')
from {{.schema}}.records r
cross join {{.schema}}.consumers c
left join {{.schema}}.mailboxes m on m.record_id = r.id
left join {{.schema}}.checkpoints k on k.record_id = r.id and k.consumer_id = c.id
left join {{.schema}}.dead_letters d on d.record_id = r.id and d.seq = $2 and d.consumer_id = c.id
where r.id = $1 and c.name = $3
