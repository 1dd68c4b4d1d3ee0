select m.in_process_types @> $1::text[] from {{.schema}}.meta m
