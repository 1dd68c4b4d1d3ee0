select {{.schema}}.command($1, $2, nullif($3::integer, 0), $4, nullif($5::bigint, 0), $6, $7, $8)
