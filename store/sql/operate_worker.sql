-- A worker, and how the last incarnation of its process stands: one that fences itself comes back under another id.
select w.name, w.status, l.status, l.ended_at is not null and l.ended_at > clock_timestamp()
from {{.schema}}.workers w
cross join lateral (
  select n.status, n.ended_at from {{.schema}}.workers n where n.instance = w.instance order by n.id desc limit 1) l
where w.id = $1
