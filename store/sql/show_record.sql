-- A record, its mailbox if it has work, and who holds it.
select r.id, r.head, greatest(r.cursor, m.cursor), m.record_id is not null, nullif(m.due_at, 'infinity'), coalesce(m.token, 0), coalesce(m.crashes, 0),
  w.id, coalesce(w.name, ''), m.claimed_at,
  (select count(*) from {{.schema}}.commands c where c.record_id = r.id and c.applied_at is null)
from {{.schema}}.records r
left join {{.schema}}.mailboxes m on m.record_id = r.id
left join {{.schema}}.workers w on w.id = m.claimed_by
where r.tenant = $1 and r.record_key = $2
