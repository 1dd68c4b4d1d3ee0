select pg_notify({{.schema}}.channel(), $1)
