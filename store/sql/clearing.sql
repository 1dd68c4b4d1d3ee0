select coalesce(sweep = 'clear', false) from {{.schema}}.consumers where id = $1
