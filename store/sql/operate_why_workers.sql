-- The workers that count as live, and whether each has been silent for longer than its lease.
select w.id, w.name, w.beat_at < clock_timestamp() - w.lease
from {{.schema}}.workers w
where w.status = 'live'
order by w.id
