select e.record_id, e.seq, e.id, e.type, e.version, e.payload, e.headers, e.occurred_at, e.created_at, r.tenant, r.record_key, u.seq
from unnest($1::bigint[], $2::bigint[], $3::integer[]) as u(id, seq, most)
cross join lateral (select * from {{.schema}}.records r where r.id = u.id offset 0) r
cross join lateral (
  select * from {{.schema}}.events e where e.record_id = u.id and e.seq > u.seq order by e.seq limit u.most
) e
order by e.record_id, e.seq
