select e.seq, e.id::text, e.type, e.version, e.payload::text, e.headers::text, e.occurred_at, e.created_at
from {{.schema}}.records r join {{.schema}}.events e on e.record_id = r.id
where r.tenant = $1::text and r.record_key = $2::text and e.seq >= $3::bigint
order by e.seq limit $4::bigint
