select coalesce({{.schema}}.traceparent($1), '')
