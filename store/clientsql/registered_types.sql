select distinct t.type from {{.schema}}.event_types t where t.type = any ($1::text[]) order by t.type
