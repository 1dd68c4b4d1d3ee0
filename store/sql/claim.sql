select record_id, token, crashes, unclean, due_at from {{.schema}}.claim($1, $2, $3, $4, $5)
