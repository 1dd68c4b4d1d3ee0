-- Events above each position from which a consumer may go on: the record's
-- base, and every row of its own but a parked one. Positions that several share are read once.
select e.record_id, e.seq, e.id, e.type, e.version, e.payload, e.headers, e.occurred_at, e.created_at
from (
  select r.id, greatest(r.cursor, m.cursor) as seq
  from unnest($1::bigint[]) as u(id)
  join {{.schema}}.mailboxes m on m.record_id = u.id
  join {{.schema}}.records r on r.id = u.id
  union
  select k.record_id, k.seq from {{.schema}}.checkpoints k where k.record_id = any ($1::bigint[]) and k.state <> 'parked'
) p
cross join lateral (
  select * from {{.schema}}.events e where e.record_id = p.id and e.seq > p.seq order by e.seq limit $2
) e
order by e.record_id, e.seq
