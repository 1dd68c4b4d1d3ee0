select p.pruned, coalesce(p.noted, 0) from {{.schema}}.prune_failures($1, $2, $3, $4, nullif($5::bigint, 0)) p
