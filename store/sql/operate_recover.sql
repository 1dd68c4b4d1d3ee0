-- Frees a chunk of the claims whose holder is not live, with the audit in the same transaction.
with freed as materialized (select {{.schema}}.recover($1) as n),
  noted as (
    insert into {{.schema}}.audit (actor, action, target, reason, detail)
    select $2::text, 'recover_stale_claims', '', $3::text, jsonb_build_object('claims', f.n) from freed f where f.n > 0)
select f.n from freed f
