-- The workers that live, those that were lost within the hour, and those that ended and have claims which
-- recover is to free.
select w.id, w.name, w.host, w.pid, w.status, w.consumers, w.state, w.drain_at, w.started_at, w.beat_at,
  w.status = 'live' and w.beat_at < clock_timestamp() - w.lease,
  (select count(*) from {{.schema}}.mailboxes m where m.claimed_by = w.id)
from {{.schema}}.workers w
where w.status = 'live' or (w.status = 'lost' and w.ended_at > clock_timestamp() - interval '1 hour')
  or w.status in ('left', 'lost') and not (w.status = 'left' and w.ended_at > clock_timestamp() and w.ended_at <= clock_timestamp() + w.lease)
    and exists (select from {{.schema}}.mailboxes m where m.claimed_by = w.id)
order by w.id
