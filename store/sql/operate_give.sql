-- Gives a command to a record whose row is locked, with the audit. The same command that still waits
-- is joined instead: an operator who asks twice gets one act, and two lines of audit. Commands are kept for
-- good: the range in the order of commands_pending leaves a planner that takes the table for empty no other index.
with same as (
  select c.id from {{.schema}}.commands c
  where c.record_id between $1::bigint and $1::bigint and c.applied_at is null and c.kind = $2::text and coalesce(c.consumer_id, 0) = $3::integer
    and c.seq = $4::bigint and coalesce(c.dead_letter_id, 0) = $5::bigint
  order by c.record_id limit 1
), joined as (
  insert into {{.schema}}.audit (actor, action, target, reason, detail)
  select $6::text, $2::text, $8::text, $7::text, jsonb_build_object('command', s.id, 'joined', true) from same s
)
select coalesce((select s.id from same s),
    {{.schema}}.command($1::bigint, $2::text, nullif($3::integer, 0), $4::bigint, nullif($5::bigint, 0), $6::text, $7::text, $8::text)),
  exists (select from same)
