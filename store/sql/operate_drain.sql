-- Asks a worker to drain, with the audit in the same transaction. One that is asked already is joined: one act,
-- two lines of audit. Answers whether it lives, and whether it was asked already.
with asked as (
  update {{.schema}}.workers set drain_at = clock_timestamp()
  where id = $1::bigint and status = 'live' and drain_at is null returning id, name, false as joined
), told as (
  select id, name, joined from asked
  union all
  select w.id, w.name, true from {{.schema}}.workers w where w.id = $1::bigint and w.status = 'live' and w.drain_at is not null
), noted as (
  insert into {{.schema}}.audit (actor, action, target, reason, detail)
  select $2::text, 'drain_worker', 'worker ' || t.name || '#' || t.id, $3::text, jsonb_build_object('worker', t.id, 'joined', t.joined) from told t
)
select exists (select from told), coalesce((select t.joined from told t), false)
