-- A consumer's position on a record: its own row, else the record's cursor.
create view {{.schema}}.positions as
select r.id as record_id, r.tenant, r.record_key, r.head, c.id as consumer_id, c.name as consumer,
  coalesce(k.seq, greatest(r.cursor, m.cursor)) as seq,
  coalesce(k.state, 'ready') as state, coalesce(k.attempt, 0) as attempt, k.next_attempt_at, k.first_failed_at, k.error_code,
  m.claimed_by, m.token, m.due_at, m.crashes
from {{.schema}}.records r
cross join {{.schema}}.consumers c
left join {{.schema}}.mailboxes m on m.record_id = r.id
left join {{.schema}}.checkpoints k on k.record_id = r.id and k.consumer_id = c.id
where c.status not in ('retired', 'disabled');

-- The state of each event's delivery to each consumer. Events from before a
-- consumer's start show as ignored where it has no trace of them. Payload-free.
create view {{.schema}}.deliveries as
select e.record_id, p.tenant, p.record_key, e.seq, e.id as event_id, e.type, e.version, p.consumer_id, p.consumer,
  case
    when d.status in ('open', 'retrying') then case when d.status = 'retrying' then 'retry_scheduled' when e.seq > p.seq then 'parked' else 'dead_letter' end
    when s.code = 'unsupported_version' then 'skipped_unsupported_version'
    when s.code is not null or d.status = 'resolved' then 'ignored'
    when e.seq <= p.seq then case
      when {{.schema}}.concerns(c.types, c.versions, c.contract_only, e.type, e.version)
        and (c.internal or not exists (select from {{.schema}}.event_types t where t.type = e.type and t.internal)) then 'completed'
      else 'ignored' end
    when e.seq = p.seq + 1 and p.state = 'parked' then 'parked'
    when e.seq = p.seq + 1 and p.state = 'backoff' then 'retry_scheduled'
    when e.seq = p.seq + 1 and p.state = 'started' then 'processing'
    else 'pending'
  end as state,
  case when e.seq = p.seq + 1 then p.attempt else coalesce(d.attempt, 0) end as attempt,
  case when e.seq = p.seq + 1 then p.next_attempt_at else d.due_at end as next_attempt_at,
  coalesce(d.error_code, case when e.seq = p.seq + 1 then p.error_code end) as error_code,
  p.claimed_by
from {{.schema}}.events e
join {{.schema}}.positions p on p.record_id = e.record_id
join {{.schema}}.consumers c on c.id = p.consumer_id
left join {{.schema}}.dead_letters d on d.record_id = e.record_id and d.seq = e.seq and d.consumer_id = p.consumer_id
left join lateral (
  select s.code from {{.schema}}.skips s
  where s.record_id = e.record_id and s.seq = e.seq and s.consumer_id = p.consumer_id order by s.attempt desc limit 1) s on true;

-- The state of each event over all its consumers: processing, then retry_scheduled,
-- claimed, pending; an unresolved dead letter shows once all is terminal.
create view {{.schema}}.event_status as
select d.record_id, d.tenant, d.record_key, d.seq, d.event_id, d.type, d.version,
  case
    when bool_or(d.state = 'processing') then 'processing'
    when bool_or(d.state = 'retry_scheduled') then 'retry_scheduled'
    when bool_or(d.state in ('pending', 'parked')) then
      case when max(d.claimed_by) is not null and bool_or(d.state = 'pending') then 'claimed' else 'pending' end
    when bool_or(d.state = 'dead_letter') then 'dead_letter'
    else 'completed'
  end as state
from {{.schema}}.deliveries d
group by d.record_id, d.tenant, d.record_key, d.seq, d.event_id, d.type, d.version
union all
select e.record_id, r.tenant, r.record_key, e.seq, e.id, e.type, e.version, 'completed'
from {{.schema}}.events e join {{.schema}}.records r on r.id = e.record_id
where not exists (select from {{.schema}}.consumers c where c.status not in ('retired', 'disabled'));
