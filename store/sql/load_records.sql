-- The claimed records themselves; one whose claim was lost is left out.
select m.record_id, m.token, m.crashes, m.unclean, r.tenant, r.record_key, r.head, greatest(r.cursor, m.cursor)
from unnest($1::bigint[], $2::bigint[]) as u(id, token)
join {{.schema}}.mailboxes m on m.record_id = u.id and m.token = u.token and m.claimed_by is not null
join {{.schema}}.records r on r.id = u.id
