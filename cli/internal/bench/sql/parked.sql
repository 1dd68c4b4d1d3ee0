-- $1 records whose first event is parked, with $2 events each: as a worker leaves them.
with r as (
  insert into keyline.records (tenant, record_key, head, cursor)
  select '', 'parked:' || n, $2::bigint, $2::bigint from generate_series(1, $1::bigint) n
  returning id
), e as (
  insert into keyline.events (record_id, seq, id, type, version, payload, headers, occurred_at, created_at)
  select r.id, seq, gen_random_uuid(), 'bench.event', 1, '{}', '{}', t, t
  from r, generate_series(1, $2::bigint) seq, clock_timestamp() t
  returning record_id, seq, id
), c as (
  select id from keyline.consumers order by id limit 1
), k as (
  insert into keyline.checkpoints (record_id, consumer_id, seq, state, attempt, first_failed_at, error_code)
  select r.id, c.id, 0, 'parked', 1, now(), 'staged' from r, c
)
insert into keyline.dead_letters (record_id, seq, consumer_id, event_id, attempt, reason, error_code, first_failed_at, failed_at)
select e.record_id, 1, c.id, e.id, 1, 'permanent', 'staged', now(), now() from e, c where e.seq = 1
