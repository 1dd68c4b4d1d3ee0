-- What the database says at the end: dead letters; deliveries that are not
-- terminal; those that are completed, in all and to timeline, and the lines that are on it;
-- the workers' lease in ms; the deliveries that failed, were retried and completed.
with d as (
  select d.* from keyline.deliveries d
  join keyline.consumers c on c.id = d.consumer_id
  where c.internal or not exists (select from keyline.event_types t where t.type = d.type and t.internal)
)
select
  (select count(*) from keyline.dead_letters),
  (select count(*) from d where state not in ('completed', 'ignored', 'skipped_unsupported_version', 'dead_letter')),
  (select count(*) from d where state = 'completed'),
  (select count(*) from d where state = 'completed' and consumer = 'timeline'),
  (select count(*) from crm.timeline),
  (select coalesce(max(extract(epoch from lease) * 1000), 0)::bigint from keyline.workers),
  (select count(*) from (
     select from keyline.failures f
     join d on d.record_id = f.record_id and d.seq = f.seq and d.consumer_id = f.consumer_id and d.state = 'completed'
     group by f.record_id, f.seq, f.consumer_id) retried)
