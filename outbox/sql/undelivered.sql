-- Records with events of the outbox on which something is not delivered yet: work waits or runs, a consumer is behind
-- (paused, parked), or a dead letter is being retried. At most $2 + 1 are counted.
select count(*) from (
  select from (
    select m.record_id from {{.Keyline}}.mailboxes m
    union
    select k.record_id from {{.Keyline}}.checkpoints k
      join {{.Keyline}}.records r on r.id = k.record_id
      join {{.Keyline}}.consumers c on c.id = k.consumer_id and c.status not in ('retired', 'disabled')
      where k.seq < r.head
    union
    select d.record_id from {{.Keyline}}.dead_letters d where d.status = 'retrying') w
  where exists (select from {{.Keyline}}.events e where e.record_id = w.record_id and starts_with(e.idempotency_key, $1))
  limit $2::bigint + 1) x;
