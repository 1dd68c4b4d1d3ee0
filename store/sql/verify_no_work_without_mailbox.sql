-- A record that has work has a mailbox, or nobody would ever look. What a sweep has yet to do is no violation.
select x.record_id, x.what
from (
  select r.id as record_id, format('head %s, done up to %s', r.head, r.cursor) as what
  from {{.schema}}.records r
  where r.id > $1::bigint and r.id <= $2::bigint and r.cursor < r.head
  union all
  select k.record_id, format('consumer %s is at %s of %s', c.name, k.seq, r.head)
  from {{.schema}}.checkpoints k
  join {{.schema}}.records r on r.id = k.record_id
  join {{.schema}}.consumers c on c.id = k.consumer_id
  where k.record_id > $1 and k.record_id <= $2 and c.status = 'active' and c.sweep is null and k.state <> 'parked' and k.seq < r.head
  union all
  select c.record_id, format('command %s waits', c.id)
  from {{.schema}}.commands c
  where c.record_id > $1 and c.record_id <= $2 and c.applied_at is null
  union all
  select d.record_id, format('dead letter %s is to be delivered again', d.id)
  from {{.schema}}.dead_letters d
  where d.record_id > $1 and d.record_id <= $2 and d.status = 'retrying') x
where ($3::bigint[] is null or x.record_id = any ($3))
  and not exists (select from {{.schema}}.mailboxes m where m.record_id = x.record_id)
order by 1, 2 limit 1000
