select distinct type from {{.schema}}.event_types where internal
