-- Where consumers stand on records, and what could hold them: the next event that concerns each (looked for in the next
-- 1,000; where none of these does, the first behind them, for nobody has said that it does not), its dead letters, the live workers that run it, and at which of them its breaker is not closed. $2: of this
-- consumer alone, with those that could hold it back; 0: of all.
select r.id, c.id, c.name, c.status, c.scope, c.updated_at, coalesce(k.seq, greatest(r.cursor, m.cursor)),
  coalesce(k.state, 'ready'), coalesce(k.attempt, 0), nullif(k.next_attempt_at, 'infinity'), k.first_failed_at, coalesce(k.error_code, ''),
  coalesce(n.seq, 0), n.created_at, n.id, coalesce(n.type, ''),
  coalesce(d.id, 0), d.failed_at, coalesce(t.id, 0), t.due_at,
  coalesce((select e.type from {{.schema}}.events e where e.record_id = r.id and e.seq = t.seq), ''),
  (select count(*) from (select from {{.schema}}.dead_letters o where o.record_id = r.id and o.consumer_id = c.id and o.status = 'open' limit 10001) o),
  array(select w.id from {{.schema}}.workers w where w.status = 'live' and c.name = any (w.consumers) order by w.id),
  array(select w.id from {{.schema}}.workers w where w.status = 'live' and c.name = any (w.consumers) and exists (
      select from jsonb_array_elements(case when jsonb_typeof(w.state -> 'consumers') = 'array' then w.state -> 'consumers' else '[]' end) as s(x)
      where s.x ->> 'name' = c.name and s.x ->> 'breaker' <> 'closed') order by w.id)
from {{.schema}}.records r
cross join {{.schema}}.consumers c
left join {{.schema}}.mailboxes m on m.record_id = r.id
left join {{.schema}}.checkpoints k on k.record_id = r.id and k.consumer_id = c.id
left join lateral (
  select e.seq, e.created_at, e.id, e.type
  from (select e.seq, e.created_at, e.id, e.type, e.version, row_number() over (order by e.seq) as place from {{.schema}}.events e
        where e.record_id = r.id and e.seq > coalesce(k.seq, greatest(r.cursor, m.cursor)) order by e.seq limit 1001) e
  where e.place > 1000 or {{.schema}}.concerns(c.types, null, c.contract_only, e.type, e.version)
    and (c.internal or not exists (select from {{.schema}}.event_types t where t.type = e.type and t.internal))
  order by e.seq limit 1) n on true
left join {{.schema}}.dead_letters d on d.record_id = r.id and d.consumer_id = c.id and d.status = 'open' and d.seq = n.seq
left join lateral (
  select t.id, t.seq, t.due_at from {{.schema}}.dead_letters t
  where t.record_id = r.id and t.consumer_id = c.id and t.status = 'retrying' order by t.due_at, t.id limit 1) t on true
where r.id = any ($1::bigint[]) and c.status not in ('retired', 'disabled') and not c.contract_only
  and ($2::integer = 0 or c.id = $2::integer or c.scope = 'all_for_one' or (select g.ordering from {{.schema}}.meta g where g.one) = 'lockstep')
order by r.id, c.name
