select sweep is not null from {{.schema}}.consumers where id = $1
