-- What the constraints refuse, should one be missing, what append refuses, and what no constraint can say: a parked head has its dead
-- letter or waits for a version, and no claim has a token that was never drawn.
select x.record_id, x.what
from (
  select k.record_id, format('consumer %s: state %s, attempt %s, next attempt %s', k.consumer_id, k.state, k.attempt, coalesce(k.next_attempt_at::text, 'none')) as what
  from {{.schema}}.checkpoints k
  where k.record_id > $1::bigint and k.record_id <= $2::bigint
    and (k.state not in ('ready', 'backoff', 'parked', 'started') or (k.state = 'backoff') <> (k.next_attempt_at is not null)
      or k.seq < 0 or k.attempt < 0 or k.granted < 0 or k.granted > k.attempt or k.crashes < 0 or (k.state = 'started' and k.attempt < 1) or k.redeliver_to < 0)
  union all
  select k.record_id, format('consumer %s is parked after %s without an open dead letter', k.consumer_id, k.seq)
  from {{.schema}}.checkpoints k
  where k.record_id > $1 and k.record_id <= $2 and k.state = 'parked' and k.error_code is distinct from 'unsupported_version'
    and not exists (select from {{.schema}}.dead_letters d
      where d.record_id = k.record_id and d.consumer_id = k.consumer_id and d.seq > k.seq and d.status = 'open')
  union all
  select m.record_id, format('mailbox: claimed by %s at %s, wants %s, crashes %s', coalesce(m.claimed_by::text, 'nobody'),
    coalesce(m.claimed_at::text, 'no time'), coalesce(m.wants::text, 'nothing'), m.crashes)
  from {{.schema}}.mailboxes m
  where m.record_id > $1 and m.record_id <= $2
    and ((m.claimed_by is null) <> (m.claimed_at is null) or (m.wants is null) <> (m.wants_due_at is null)
      or (m.claimed_by is not null and m.wants is not null) or m.cursor < 0 or m.crashes < 0)
  union all
  select r.id, format('record key of %s bytes, tenant of %s', octet_length(r.record_key), octet_length(r.tenant))
  from {{.schema}}.records r
  where r.id > $1 and r.id <= $2 and (octet_length(r.record_key) not between 1 and 512 or octet_length(r.tenant) > 512)
  union all
  select e.record_id, format('event %s: type of %s bytes, version %s', e.seq, octet_length(e.type), e.version)
  from {{.schema}}.events e
  where e.record_id > $1 and e.record_id <= $2
    and (octet_length(e.type) not between 1 and 255 or e.version < 1)
  union all
  select m.record_id, format('token %s was never drawn', m.token)
  from {{.schema}}.mailboxes m
  where m.record_id > $1 and m.record_id <= $2 and m.token > (select t.last_value from {{.schema}}.tokens t)
  union all
  select d.record_id, format('dead letter %s: status %s, due %s, resolved %s', d.id, d.status, coalesce(d.due_at::text, 'never'), coalesce(d.resolved_at::text, 'never'))
  from {{.schema}}.dead_letters d
  where d.record_id > $1 and d.record_id <= $2
    and (d.status not in ('open', 'retrying', 'delivered', 'resolved') or (d.status = 'retrying') <> (d.due_at is not null)
      or (d.status in ('delivered', 'resolved')) <> (d.resolved_at is not null))) x
where ($3::bigint[] is null or x.record_id = any ($3))
order by 1, 2 limit 1000
