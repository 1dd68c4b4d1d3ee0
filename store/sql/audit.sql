insert into {{.schema}}.audit (actor, action, target, reason, detail) values ($1, $2, $3, $4, $5::text::jsonb)
