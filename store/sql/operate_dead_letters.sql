-- Dead letters by what operators ask for; those with ids between $11 and $12, neither included, downwards or
-- (with $13) upwards. Payload-free. $9: without those of event types that are internal.
select d.id, d.record_id, r.tenant, r.record_key, d.seq, d.consumer_id, coalesce(c.name, ''), d.event_id, coalesce(e.type, ''), d.attempt,
  d.reason, d.error_code, d.error_message, d.first_failed_at, d.failed_at, d.status, d.due_at, d.resolved_at,
  coalesce(d.resolved_by, ''), coalesce(d.resolution, '')
from {{.schema}}.dead_letters d
join {{.schema}}.records r on r.id = d.record_id
left join {{.schema}}.consumers c on c.id = d.consumer_id
left join {{.schema}}.events e on e.record_id = d.record_id and e.seq = d.seq
where ($1::bigint is null or d.id = $1) and ($2::text is null or c.name = $2) and ($3::text is null or d.error_code = $3)
  and ($4::text is null or e.type = $4) and ($5::text is null or r.tenant = $5) and ($6::text is null or r.record_key = $6)
  and ($7::timestamptz is null or d.failed_at >= $7) and ($8::timestamptz is null or d.failed_at < $8)
  and (not $9::boolean or not exists (select from {{.schema}}.event_types t where t.type = e.type and t.internal))
  and ($10::text[] is null or d.status = any ($10))
  and d.id > $11::bigint and d.id < $12::bigint
order by case when $13::boolean then d.id end, d.id desc -- which is an index's order once $13 is known
limit $14
