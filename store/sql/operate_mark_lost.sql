-- Marks a worker lost whose beat is the one that was seen for a whole lease, with the audit in the same transaction.
with marked as materialized (select {{.schema}}.mark_lost($1::bigint, $2::bigint) as yes),
  noted as (
    insert into {{.schema}}.audit (actor, action, target, reason, detail)
    select $3::text, 'mark_worker_lost', 'worker ' || $1::bigint, $4::text, jsonb_build_object('worker', $1::bigint) from marked m where m.yes)
select m.yes from marked m
