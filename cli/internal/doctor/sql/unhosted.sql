-- Active consumers that no live worker runs, and whether work waits for one, among the first thousand records that
-- want somebody, or that are due while nobody lives.
select c.name,
  exists (select from (select m.wants from {{.schema}}.mailboxes m
      where m.claimed_by is null and m.wants is not null order by m.wants_due_at limit 1000) m where c.id = any (m.wants))
  or (not exists (select from {{.schema}}.workers w where w.status = 'live') and exists (
    select from (select m.due_at from {{.schema}}.mailboxes m where m.claimed_by is null order by m.due_at limit 1) m where m.due_at <= clock_timestamp()))
from {{.schema}}.consumers c
where c.status = 'active' and not c.contract_only
  and not exists (select from {{.schema}}.workers w where w.status = 'live' and c.name = any (w.consumers))
order by c.name
