-- The records that have waited longest, the longest first, and for what: due and claimed by nobody, claimed, in backoff, parked. Each
-- kind is looked for among a few thousand rows: the number of records and events does not matter, and beyond
-- that the oldest of a kind may be missed. $1: the most records; $2: seconds below which nothing is stuck; $3: the most rows; $4: without
-- what events failed with that are of an internal type, or of one that is not known any more.
with due as (
  select m.record_id, 'ready' as reason, m.due_at as since, null::bigint as worker, null::integer as consumer, null::bigint as seq, 0 as attempt,
    '' as code, null::timestamptz as next_at
  from {{.schema}}.mailboxes m
  where m.claimed_by is null and m.due_at < statement_timestamp() - make_interval(secs => $2::double precision)
  order by m.due_at limit $1::integer
), claimed as (
  select m.record_id, 'claimed', m.claimed_at, m.claimed_by, null::integer, null::bigint, 0, '', null::timestamptz
  from (select m.record_id, m.claimed_at, m.claimed_by from {{.schema}}.mailboxes m where m.claimed_by is not null order by m.claimed_by limit $3::integer) m
  where m.claimed_at < statement_timestamp() - make_interval(secs => $2::double precision)
  order by m.claimed_at limit $1::integer
), backoff as (
  select k.record_id, 'backoff', k.first_failed_at, null::bigint, k.consumer_id, k.seq + 1, k.attempt, coalesce(k.error_code, ''), k.next_attempt_at
  from (select m.record_id from {{.schema}}.mailboxes m where m.claimed_by is null and m.due_at >= statement_timestamp() order by m.due_at limit $3::integer) m
  cross join lateral (
    select k.* from {{.schema}}.checkpoints k where k.record_id = m.record_id and k.state = 'backoff' order by k.record_id, k.consumer_id limit 1000) k
  order by k.first_failed_at limit $1::integer
), parked as (
  select k.record_id, 'parked', k.first_failed_at, null::bigint, k.consumer_id, k.seq + 1, k.attempt, coalesce(k.error_code, ''), null::timestamptz
  from (select k.* from {{.schema}}.checkpoints k where k.state = 'parked' order by k.consumer_id, k.record_id limit $3::integer) k
  order by k.first_failed_at limit $1::integer
), oldest as (
  select x.* from (select * from due union all select * from claimed union all select * from backoff union all select * from parked) x
  order by x.since nulls last limit $1::integer
)
select r.tenant, r.record_key, x.reason, x.since, coalesce(c.name, ''),
  case when h.hidden then 0 else x.attempt end, case when h.hidden then '' else x.code end, x.next_at, x.worker, coalesce(w.name, '')
from oldest x
join {{.schema}}.records r on r.id = x.record_id
cross join lateral (
  select $4::boolean and x.seq is not null and (
    select not exists (select from {{.schema}}.event_types t where t.type = e.type and t.internal)
    from {{.schema}}.events e where e.record_id = x.record_id and e.seq = x.seq) is not true as hidden offset 0) h
left join {{.schema}}.consumers c on c.id = x.consumer
left join {{.schema}}.workers w on w.id = x.worker
order by x.since nulls last, r.tenant, r.record_key
