-- How many workers live, and how many ended and still hold claims.
select count(*) filter (where w.status = 'live'),
  count(*) filter (where w.status <> 'live' and exists (select from {{.schema}}.mailboxes m where m.claimed_by = w.id))
from {{.schema}}.workers w
