select c.id, c.record_id, c.kind, coalesce(c.consumer_id, 0), c.seq, coalesce(c.dead_letter_id, 0), c.reason, c.actor
from {{.schema}}.commands c
where c.applied_at is null and c.record_id = any ($1::bigint[])
order by c.id
