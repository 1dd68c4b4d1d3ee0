-- Records by tenant and key, those behind ($1, $2), at most $3: of all tenants, or ($4) of one, there from key $5 on
-- and below $6 (null: to the end).
select r.tenant, r.record_key, r.head, greatest(r.cursor, m.cursor), m.record_id is not null, nullif(m.due_at, 'infinity'), m.claimed_by, coalesce(w.name, '')
from (
  (select r.id, r.tenant, r.record_key, r.head, r.cursor from {{.schema}}.records r
   where $4::text is null and (r.tenant, r.record_key) > ($1::text, $2::text)
   order by r.tenant, r.record_key limit $3::integer)
  union all
  (select r.id, r.tenant, r.record_key, r.head, r.cursor from {{.schema}}.records r
   where $4::text is not null and r.tenant = $4::text and r.record_key > $2::text and r.record_key >= $5::text
     and $6::text is null
   order by r.record_key limit $3::integer)
  union all
  (select r.id, r.tenant, r.record_key, r.head, r.cursor from {{.schema}}.records r
   where $4::text is not null and r.tenant = $4::text and r.record_key > $2::text and r.record_key >= $5::text
     and $6::text is not null and r.record_key < $6::text
   order by r.record_key limit $3::integer)
) r
left join lateral (select m.* from {{.schema}}.mailboxes m where m.record_id = r.id offset 0) m on true
left join {{.schema}}.workers w on w.id = m.claimed_by
order by r.tenant, r.record_key
