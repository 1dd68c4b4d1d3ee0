-- Pending commands, with the dead letter that each is about: it names the consumer and the seq.
select c.id, c.record_id, c.kind, coalesce(d.consumer_id, c.consumer_id, 0), coalesce(d.seq, c.seq), coalesce(c.dead_letter_id, 0), c.reason, c.actor,
  d.id, coalesce(d.attempt, 0), coalesce(d.granted, 0), coalesce(d.crashes, 0), d.first_failed_at, coalesce(d.error_code, ''), coalesce(d.status = 'open', false)
from {{.schema}}.commands c
left join lateral (
  select * from {{.schema}}.dead_letters d where d.id = c.dead_letter_id and d.record_id is not distinct from c.record_id offset 0
) d on true
where c.applied_at is null and c.record_id = any ($1::bigint[])
