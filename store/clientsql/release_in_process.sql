update {{.schema}}.meta m
set in_process_types = coalesce((select array_agg(t order by t) from unnest(m.in_process_types) t where t <> all ($1::text[])), '{}')
where m.in_process_types && $1::text[]
