-- Each record's rows by a look-up of their own, whatever the planner believes: it may have planned while the table had no
-- page, when all its indexes are one to it, and the one that begins with the consumer as good as any. It is of no use for the order
-- asked for here; with "=" it would be.
select k.record_id, k.consumer_id, k.seq, k.state, k.attempt, k.granted, k.crashes,
  k.next_attempt_at, k.first_failed_at, coalesce(k.error_code, ''), k.live_from, coalesce(k.redeliver_to, -1)
from unnest($1::bigint[]) as u(id)
cross join lateral (
  select * from {{.schema}}.checkpoints k where k.record_id between u.id and u.id order by k.record_id, k.consumer_id offset 0
) k
