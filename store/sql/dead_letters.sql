-- Dead letters by id, consumer, tenant, record or status, the newest first; those with an id below $6. Payload-free.
select d.id, d.record_id, r.tenant, r.record_key, d.seq, d.consumer_id, coalesce(c.name, ''), d.event_id, coalesce(e.type, ''), d.attempt,
  d.reason, d.error_code, d.error_message, d.first_failed_at, d.failed_at, d.status, d.due_at, d.resolved_at,
  coalesce(d.resolved_by, ''), coalesce(d.resolution, '')
from {{.schema}}.dead_letters d
join {{.schema}}.records r on r.id = d.record_id
left join {{.schema}}.consumers c on c.id = d.consumer_id
left join {{.schema}}.events e on e.record_id = d.record_id and e.seq = d.seq
where ($1::bigint is null or d.id = $1) and ($2::integer is null or d.consumer_id = $2) and ($3::text is null or r.tenant = $3)
  and ($4::bigint is null or d.record_id = $4) and ($5::text[] is null or d.status = any ($5)) and ($6::bigint is null or d.id < $6)
order by d.id desc
limit $7
