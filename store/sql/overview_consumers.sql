-- The map of consumers: what is registered, who runs it, and what became of its
-- deliveries. What waits is as the leading worker last counted it (keep_health); counts of what is open stop at 10,001 each.
select c.name, c.previous_names, c.status, c.revision, c.types, c.versions, c.on_unsupported, c.start_kind, c.start_time,
  c.effect, c.effect_note, c.on_dead, c.scope, c.transactional, c.contract_only, c.internal, coalesce(c.sweep, ''),
  array(select w.name || '#' || w.id from {{.schema}}.workers w where w.status = 'live' and c.name = any (w.consumers) order by w.id),
  h.completed, h.failed, h.skipped, h.dead, h.retried, h.last_success_at, h.last_failure_at,
  (select count(*) from (select from {{.schema}}.dead_letters d where d.consumer_id = c.id and d.status in ('open', 'retrying') limit 10001) d),
  coalesce(b.retrying, 0),
  (select count(*) from (select from {{.schema}}.checkpoints k where k.consumer_id = c.id and k.state = 'parked' limit 10001) k),
  coalesce(b.pending, 0), coalesce(b.pending_exact, false), b.oldest_at, b.counted_at
from {{.schema}}.consumers c
left join {{.schema}}.consumer_backlog b on b.consumer_id = c.id
left join lateral (
  select coalesce(sum(h.completed), 0)::bigint as completed, coalesce(sum(h.failed), 0)::bigint as failed,
    coalesce(sum(h.skipped), 0)::bigint as skipped, coalesce(sum(h.dead), 0)::bigint as dead, coalesce(sum(h.retried), 0)::bigint as retried,
    max(h.last_success_at) as last_success_at, max(h.last_failure_at) as last_failure_at
  from {{.schema}}.consumer_health h where h.consumer_id = c.id) h on true
order by c.name
