-- Records, their mailboxes, who holds them, and what waits on them. 'infinity' is no time.
select r.id, r.tenant, r.record_key, r.head, greatest(r.cursor, m.cursor), m.record_id is not null, nullif(m.due_at, 'infinity'), m.claimed_by,
  coalesce(w.name, ''), coalesce(w.status, ''), coalesce(w.status = 'live' and w.beat_at < clock_timestamp() - w.lease, false), m.claimed_at, coalesce(m.crashes, 0),
  (select count(*) from {{.schema}}.commands c where c.record_id = r.id and c.applied_at is null),
  (select g.ordering from {{.schema}}.meta g where g.one), clock_timestamp()
from {{.schema}}.records r
left join {{.schema}}.mailboxes m on m.record_id = r.id
left join {{.schema}}.workers w on w.id = m.claimed_by
where r.id = any ($1::bigint[])
order by r.id
