-- How many dead letters a filter takes, up to an id (0: all), and the highest id among them: what dies later is none of them.
select count(*), coalesce(max(d.id), 0)
from {{.schema}}.dead_letters d
join {{.schema}}.records r on r.id = d.record_id
left join {{.schema}}.consumers c on c.id = d.consumer_id
left join {{.schema}}.events e on e.record_id = d.record_id and e.seq = d.seq
where ($1::bigint is null or d.id = $1) and ($2::text is null or c.name = $2) and ($3::text is null or d.error_code = $3)
  and ($4::text is null or e.type = $4) and ($5::text is null or r.tenant = $5) and ($6::text is null or r.record_key = $6)
  and ($7::timestamptz is null or d.failed_at >= $7) and ($8::timestamptz is null or d.failed_at < $8)
  and (not $9::boolean or not exists (select from {{.schema}}.event_types t where t.type = e.type and t.internal))
  and ($10::text[] is null or d.status = any ($10)) and ($11::bigint = 0 or d.id <= $11)
