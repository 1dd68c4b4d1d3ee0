select {{.schema}}.mark_lost($1, $2)
