-- What handlers were given, against what was appended. One row per consumer.
with concerned as (
  -- Which types and versions a consumer is owed, by the registry's words and
  -- this query's own reading of them.
  select c.id as consumer_id, c.name as consumer, t.type, t.version, c.start_kind, c.start_time, c.created_at as since
  from keyline.consumers c
  cross join (select distinct e.type, e.version from keyline.events e) t
  where not c.contract_only and c.status <> 'retired'
    and exists (
      select from unnest(c.types) g (glob)
      where t.type ~ ('^' || replace(regexp_replace(g.glob, '([.+?(){}|^$\[\]\\])', '\\\1', 'g'), '*', '.*') || '$'))
    and (c.versions is null or t.version = any (c.versions))
    and (c.internal or not exists (select from keyline.event_types i where i.type = t.type and i.internal))
),
owed as (
  select c.consumer_id, c.consumer, r.tenant, r.record_key, e.record_id, e.seq, e.created_at,
    case c.start_kind when 'beginning' then true when 'at' then e.created_at >= c.start_time else e.created_at >= c.since end as expected
  from keyline.events e
  join keyline.records r on r.id = e.record_id
  join concerned c on c.type = e.type and c.version = e.version
),
marks as (
  select l.consumer, l.tenant, l.record_key, l.seq,
    min(l.id) filter (where l.mark = 'begin') as begun, min(l.at) filter (where l.mark = 'begin') as begun_at,
    min(l.id) filter (where l.mark = 'done') as done, count(*) filter (where l.mark = 'done') as times
  from crm.delivered_log l
  group by l.consumer, l.tenant, l.record_key, l.seq
),
deliveries as (
  select o.*, m.begun, m.begun_at, m.done, coalesce(m.times, 0) as times,
    exists (select from keyline.dead_letters d
            where d.record_id = o.record_id and d.seq = o.seq and d.consumer_id = o.consumer_id) as dead,
    exists (select from keyline.skips s
            where s.record_id = o.record_id and s.seq = o.seq and s.consumer_id = o.consumer_id) as skipped
  from owed o
  left join marks m on m.consumer = o.consumer and m.tenant = o.tenant and m.record_key = o.record_key and m.seq = o.seq
),
-- free: the number of the mark after which younger events may begin.
ordered as (
  select d.*,
    max(case
      when d.dead or d.skipped then coalesce(d.begun, 0)
      when d.done is not null then d.done
      when d.begun is not null or d.expected then 9223372036854775807
      else 0
    end) over older as free,
    max(d.done) filter (where not d.dead) over older as older_done
  from deliveries d
  window older as (partition by d.consumer, d.tenant, d.record_key order by d.seq rows between unbounded preceding and 1 preceding)
),
-- Every run, first or repeated, must begin after all that is older than its
-- first event has ended.
early as (
  select distinct l.consumer, l.tenant, l.record_key, l.seq
  from (
    select l.*, min(l.id) over run as run_begun, min(l.seq) over run as run_seq
    from crm.delivered_log l where l.mark = 'begin'
    window run as (partition by l.run)
  ) l
  join ordered o on o.consumer = l.consumer and o.tenant = l.tenant and o.record_key = l.record_key and o.seq = l.run_seq
  where o.free > l.run_begun
  union
  -- And within a run events end in their order.
  select o.consumer, o.tenant, o.record_key, o.seq from ordered o where o.older_done > o.done and not o.dead
),
-- Counted once for all consumers: for each of them anew, what was recorded would be compared with all that is owed.
violations as (select e.consumer, count(*) as n from early e group by e.consumer),
strangers as (
  select m.consumer, count(*) as n from marks m
  left join owed o on o.consumer = m.consumer and o.tenant = m.tenant and o.record_key = m.record_key and o.seq = m.seq
  where o.seq is null group by m.consumer
)
select c.name as consumer,
  count(d.seq) filter (where d.expected) as expected,
  count(d.seq) filter (where d.done is not null) as delivered,
  coalesce(sum(d.times - 1) filter (where d.times > 1), 0)::bigint as redelivered,
  count(d.seq) filter (where d.dead and d.done is null) as dead,
  count(d.seq) filter (where d.expected and d.done is null and not d.dead and not d.skipped) as lost,
  coalesce((select v.n from violations v where v.consumer = c.name), 0) as order_violations,
  coalesce((select u.n from strangers u where u.consumer = c.name), 0) as unexpected
from keyline.consumers c
left join deliveries d on d.consumer_id = c.id
where not c.contract_only and c.status <> 'retired'
group by c.id, c.name
order by c.name
