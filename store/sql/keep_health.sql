select coalesce({{.schema}}.keep_health($1, make_interval(secs => $2::double precision), $3), 0)
