-- Events above the rows of consumers that may go on from another position than
-- the base: every row but a parked one. Positions that several share are read once.
select p.id, e.seq, e.id, e.type, e.version, e.payload, e.headers, e.occurred_at, e.created_at
from (
  select distinct k.record_id as id, k.seq
  from unnest($1::bigint[]) as u(id)
  join {{.schema}}.checkpoints k on k.record_id = u.id
  join {{.schema}}.mailboxes m on m.record_id = u.id
  join {{.schema}}.records r on r.id = u.id
  where k.state <> 'parked' and k.seq <> greatest(r.cursor, m.cursor)
) p
cross join lateral (
  select * from {{.schema}}.events e where e.record_id = p.id and e.seq > p.seq order by e.seq limit $2
) e
