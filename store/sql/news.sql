-- Heads of resident records, whether a command waits on them, and the registry's epoch (also without records).
select e.registry_epoch, r.id, r.head,
  exists (select from {{.schema}}.commands c where c.applied_at is null and c.record_id = r.id)
from {{.schema}}.meta e
left join (unnest($1::bigint[]) as u(id) cross join lateral (select * from {{.schema}}.records r where r.id = u.id offset 0) r) on true
