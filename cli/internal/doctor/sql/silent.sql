-- Live workers that have not renewed for longer than their lease, the longest silent first.
select w.name || '#' || w.id, extract(epoch from clock_timestamp() - w.beat_at)::double precision,
  (select count(*) from (select from {{.schema}}.mailboxes m where m.claimed_by = w.id limit 10001) m)
from {{.schema}}.workers w
where w.status = 'live' and w.beat_at < clock_timestamp() - w.lease
order by w.beat_at limit 100
