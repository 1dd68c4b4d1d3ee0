select r.id from {{.schema}}.records r where r.tenant = $1 and r.record_key = $2
