-- The workers that live, and those that were lost within the hour.
select w.id, w.name, w.host, w.pid, w.status, w.consumers, w.state, w.drain_at, w.started_at, w.beat_at,
  w.status = 'live' and w.beat_at < clock_timestamp() - w.lease,
  (select count(*) from {{.schema}}.mailboxes m where m.claimed_by = w.id)
from {{.schema}}.workers w
where w.status = 'live' or (w.status = 'lost' and w.ended_at > clock_timestamp() - interval '1 hour')
order by w.id
