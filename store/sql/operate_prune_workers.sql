-- Deletes workers that ended before a time, with the audit in the same transaction.
with gone as materialized (select {{.schema}}.prune_workers($1::timestamptz, $2::integer) as n)
select g.n, case when g.n > 0 then
  {{.schema}}.prune_noted(nullif($5::bigint, 0), $3::text, $4::text, 'workers that ended before ' || $1, jsonb_build_object('workers', g.n)) else $5 end
from gone g
