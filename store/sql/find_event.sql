select e.record_id, e.seq, r.tenant, r.record_key, e.type
from {{.schema}}.events e join {{.schema}}.records r on r.id = e.record_id
where e.id = $1
