-- No cursor is above its record's head.
select r.id, format('head %s, cursor %s, its mailbox''s %s', r.head, r.cursor, coalesce(m.cursor, 0))
from {{.schema}}.records r
left join {{.schema}}.mailboxes m on m.record_id = r.id
where r.id > $1::bigint and r.id <= $2::bigint and ($3::bigint[] is null or r.id = any ($3))
  and (r.cursor > r.head or m.cursor > r.head or r.cursor < 0)
order by 1 limit 1000
