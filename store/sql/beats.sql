-- The live workers, and those that are gone and have claims yet, which recovery is to free.
select id, beat, lease, drain_at is not null, status <> 'live' from {{.schema}}.workers w
where status = 'live' or exists (select from {{.schema}}.mailboxes m where m.claimed_by = w.id)

