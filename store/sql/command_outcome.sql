select c.applied_at is not null, coalesce(c.done, false), coalesce(c.detail, '') from {{.schema}}.commands c where c.id = $1
