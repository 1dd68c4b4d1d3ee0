select {{.schema}}.flush_extras($1, array[$2::bigint], $3::text::jsonb, clock_timestamp())
