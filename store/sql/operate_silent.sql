-- Live workers that have not renewed for longer than their lease, by the database's clock. It only says
-- whom to watch: that they are lost is decided by watching.
select w.id, w.beat, (extract(epoch from w.lease) * 1000)::bigint
from {{.schema}}.workers w
where w.status = 'live' and w.beat_at < clock_timestamp() - w.lease
order by w.id
