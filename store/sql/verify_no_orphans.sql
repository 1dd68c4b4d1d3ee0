-- No row speaks of a record, a consumer or an event that is not there.
select x.record_id, x.what
from (
  select e.record_id, 'events' || ' without a record' as what from (
    select distinct e.record_id from {{.schema}}.events e where e.record_id > $1::bigint and e.record_id <= $2::bigint) e
  where not exists (select from {{.schema}}.records r where r.id = e.record_id)
  union all
  select m.record_id, 'a mailbox without a record' from {{.schema}}.mailboxes m
  where m.record_id > $1 and m.record_id <= $2 and not exists (select from {{.schema}}.records r where r.id = m.record_id)
  union all
  select p.record_id, format('pruned up to %s, without a record', p.seq) from {{.schema}}.pruned p
  where p.record_id > $1 and p.record_id <= $2 and not exists (select from {{.schema}}.records r where r.id = p.record_id)
  union all
  select k.record_id, format('a checkpoint of consumer %s without a record', k.consumer_id) from {{.schema}}.checkpoints k
  where k.record_id > $1 and k.record_id <= $2 and not exists (select from {{.schema}}.records r where r.id = k.record_id)
  union all
  select k.record_id, format('a checkpoint of consumer %s, which is not registered', k.consumer_id) from {{.schema}}.checkpoints k
  where k.record_id > $1 and k.record_id <= $2 and not exists (select from {{.schema}}.consumers c where c.id = k.consumer_id)
  union all
  select d.record_id, format('dead letter %s of an event that is not there', d.id) from {{.schema}}.dead_letters d
  where d.record_id > $1 and d.record_id <= $2 and d.status in ('open', 'retrying')
    and not exists (select from {{.schema}}.events e where e.record_id = d.record_id and e.seq = d.seq)
  union all
  select d.record_id, format('dead letter %s of consumer %s, which is not registered', d.id, d.consumer_id) from {{.schema}}.dead_letters d
  where d.record_id > $1 and d.record_id <= $2 and not exists (select from {{.schema}}.consumers c where c.id = d.consumer_id)
  union all
  select c.record_id, format('command %s without a record', c.id) from {{.schema}}.commands c
  where c.record_id > $1 and c.record_id <= $2 and c.applied_at is null and not exists (select from {{.schema}}.records r where r.id = c.record_id)
  union all
  select s.record_id, format('a skip of event %s, which is not there', s.seq) from {{.schema}}.skips s
  where s.record_id > $1 and s.record_id <= $2
    and not exists (select from {{.schema}}.events e where e.record_id = s.record_id and e.seq = s.seq)) x
where ($3::bigint[] is null or x.record_id = any ($3))
order by 1, 2 limit 1000
