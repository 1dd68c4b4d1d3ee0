-- Events above the rows of consumers that may go on from another position than
-- the base: every row but a parked one. Positions that several share are read once.
-- The rows come first: few records have one, and a planner that starts elsewhere looks at them all.
with rows as materialized (
  select k.record_id, k.seq
  from unnest($1::bigint[]) as u(id) join {{.schema}}.checkpoints k on k.record_id = u.id
  where k.state <> 'parked'
)
select p.id, e.seq, e.id, e.type, e.version, e.payload, e.headers, e.occurred_at, e.created_at
from (
  select distinct k.record_id as id, k.seq
  from rows k
  join {{.schema}}.mailboxes m on m.record_id = k.record_id
  join {{.schema}}.records r on r.id = k.record_id
  where k.seq <> greatest(r.cursor, m.cursor)
) p
cross join lateral (
  select * from {{.schema}}.events e where e.record_id = p.id and e.seq > p.seq order by e.seq limit $2
) e
