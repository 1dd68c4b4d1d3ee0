-- Heads of resident records, whether a command waits on them, and the registry's epoch (also without records).
select e.registry_epoch, r.id, r.head,
  exists (select from {{.schema}}.commands c where c.applied_at is null and c.record_id = r.id)
from {{.schema}}.meta e
left join (unnest($1::bigint[]) as u(id) join {{.schema}}.records r on r.id = u.id) on true
