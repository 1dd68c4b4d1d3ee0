select consumer, outcome from {{.schema}}.sweep($1, $2)
