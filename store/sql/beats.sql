-- The live workers, and those that are gone and have claims yet, which recovery is to free. Who has claims is read by stepping
-- from one claimant to the next, which are few, so that it depends on no statistics.
with recursive claimants as (
  (select m.claimed_by as id from {{.schema}}.mailboxes m where m.claimed_by is not null order by m.claimed_by limit 1)
  union all
  select (select m.claimed_by from {{.schema}}.mailboxes m where m.claimed_by > c.id order by m.claimed_by limit 1) from claimants c where c.id is not null
)
select id, beat, lease, drain_at is not null, status <> 'live' from {{.schema}}.workers w
where status = 'live' or w.id in (select c.id from claimants c where c.id is not null)
