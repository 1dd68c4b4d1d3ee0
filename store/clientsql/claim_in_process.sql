update {{.schema}}.meta m
set in_process_types = (select array_agg(distinct t order by t) from unnest(m.in_process_types || $1::text[]) t)
where not m.in_process_types @> $1::text[]
