-- Events above the rows of consumers that may go on from another position than
-- the base: every row but a parked one. Positions that several share are read once.
-- The rows come first: few records have one, and a planner that starts elsewhere looks at them all.
with rows as materialized (
  select k.record_id, k.seq
  from unnest($1::bigint[]) as u(id)
  cross join lateral ( -- see load_checkpoints
    select * from {{.schema}}.checkpoints k where k.record_id between u.id and u.id order by k.record_id, k.consumer_id offset 0
  ) k
  where k.state <> 'parked'
)
select p.id, e.seq, e.id, e.type, e.version, e.payload, e.headers, e.occurred_at, e.created_at, p.seq
from (
  select distinct k.record_id as id, k.seq
  from rows k
  cross join lateral (
    select greatest(r.cursor, m.cursor) as base
    from {{.schema}}.records r join {{.schema}}.mailboxes m on m.record_id = r.id where r.id = k.record_id offset 0
  ) b
  where k.seq <> b.base
) p
cross join lateral (
  select * from {{.schema}}.events e where e.record_id = p.id and e.seq > p.seq order by e.seq limit $2
) e
