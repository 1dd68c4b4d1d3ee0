-- $1 records of $2 events whose first event failed and is due again tomorrow: as a worker leaves them.
with r as (
  insert into keyline.records (tenant, record_key, head)
  select '', 'backoff:' || n, $2::bigint from generate_series(1, $1::bigint) n
  returning id
), e as (
  insert into keyline.events (record_id, seq, id, type, version, payload, headers, occurred_at, created_at)
  select r.id, seq, gen_random_uuid(), 'bench.event', 1, '{}', '{}', t, t
  from r, generate_series(1, $2::bigint) seq, clock_timestamp() t
), m as (
  insert into keyline.mailboxes (record_id, due_at) select r.id, now() + interval '1 day' from r
)
insert into keyline.checkpoints (record_id, consumer_id, seq, state, attempt, next_attempt_at, first_failed_at, error_code)
select r.id, c.id, 0, 'backoff', 1, now() + interval '1 day', now(), 'staged'
from r, (select id from keyline.consumers order by id limit 1) c
