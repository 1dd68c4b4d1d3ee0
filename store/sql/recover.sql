select {{.schema}}.recover($1)
