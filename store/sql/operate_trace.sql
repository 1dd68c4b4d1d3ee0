-- What the database knows of one event's deliveries, payload-free: where each consumer stands with it, the runs of it
-- that failed, its dead letter, what was skipped and why, and what operators asked for.
select d.consumer, d.state, d.attempt, d.next_attempt_at, coalesce(d.error_code, ''), d.claimed_by, coalesce(w.name, ''),
  (select coalesce(jsonb_agg(jsonb_build_object('attempt', f.attempt, 'at', f.at, 'error_code', f.error_code, 'error_message', f.error_message,
     'worker_id', f.worker_id) order by f.attempt), '[]')
   from {{.schema}}.failures f where f.record_id = d.record_id and f.seq = d.seq and f.consumer_id = d.consumer_id),
  (select jsonb_build_object('id', x.id, 'status', x.status, 'reason', x.reason, 'attempt', x.attempt, 'error_code', x.error_code,
     'failed_at', x.failed_at, 'due_at', x.due_at, 'resolved_at', x.resolved_at, 'resolved_by', coalesce(x.resolved_by, ''),
     'resolution', coalesce(x.resolution, ''))
   from {{.schema}}.dead_letters x where x.record_id = d.record_id and x.seq = d.seq and x.consumer_id = d.consumer_id),
  (select coalesce(jsonb_agg(jsonb_build_object('attempt', s.attempt, 'at', s.at, 'code', s.code, 'reason', s.reason) order by s.attempt), '[]')
   from {{.schema}}.skips s where s.record_id = d.record_id and s.seq = d.seq and s.consumer_id = d.consumer_id),
  (select coalesce(jsonb_agg(jsonb_build_object('command', m.id, 'kind', m.kind, 'at', m.created_at, 'actor', m.actor, 'reason', m.reason,
     'applied_at', m.applied_at, 'outcome', coalesce(m.detail, '')) order by m.id), '[]')
   from {{.schema}}.commands m where m.record_id = d.record_id and m.consumer_id = d.consumer_id
     and (m.seq = d.seq or m.dead_letter_id in (
       select x.id from {{.schema}}.dead_letters x where x.record_id = d.record_id and x.seq = d.seq and x.consumer_id = d.consumer_id)))
from {{.schema}}.deliveries d
join {{.schema}}.consumers c on c.id = d.consumer_id and not c.contract_only
left join {{.schema}}.workers w on w.id = d.claimed_by
where d.event_id = $1
order by d.consumer
