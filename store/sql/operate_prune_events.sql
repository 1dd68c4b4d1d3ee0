select coalesce(p.passed, -1), p.events, p.records, p.dead_letters, p.skips, coalesce(p.noted, 0), p.held
from {{.schema}}.prune_events($1, $2, $3, $4, $5, $6, $7, nullif($8::bigint, 0)) p
