-- Each record's by a look-up of their own in the index of those that are retried: with "any" all that ever died on a record would be
-- read, for each load of it.
select d.id, d.record_id, d.consumer_id, d.seq, d.attempt, d.granted, d.crashes, d.started, d.due_at, d.first_failed_at, d.error_code
from unnest($1::bigint[]) as u(id)
cross join lateral ( -- a range, and an order, as in load_checkpoints
  select * from {{.schema}}.dead_letters d
  where d.record_id between u.id and u.id and d.status = 'retrying' order by d.record_id offset 0
) d
