select c.id from {{.schema}}.consumers c where c.name = $1
