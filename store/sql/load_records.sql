-- The claimed records themselves, one row for each event above the base, up to
-- $3; one row without an event where there is none. A record whose claim was lost is left out:
-- its token has changed. (A look at claimed_by alone would make the planner read its index through.) Each table is looked up
-- apart: a planner that takes them for empty may begin with any of them.
select m.record_id, m.token, m.crashes, m.unclean, r.tenant, r.record_key, r.head, b.base, (select registry_epoch from {{.schema}}.meta),
  e.seq, e.id, e.type, e.version, e.payload, e.headers, e.occurred_at, e.created_at
from unnest($1::bigint[], $2::bigint[]) as u(id, token)
cross join lateral (select * from {{.schema}}.mailboxes m where m.record_id = u.id offset 0) m
cross join lateral (select * from {{.schema}}.records r where r.id = u.id offset 0) r
cross join lateral (select greatest(r.cursor, m.cursor) as base) b
left join lateral (
  select * from {{.schema}}.events e where e.record_id = u.id and e.seq > b.base order by e.seq limit $3
) e on true
where m.token = u.token
