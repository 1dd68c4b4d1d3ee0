select {{.schema}}.flush_extras($1, array[$2::bigint], $3, clock_timestamp())
