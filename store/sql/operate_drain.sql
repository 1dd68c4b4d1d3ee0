-- Asks a worker to drain, with the audit in the same transaction: the process that it is, whatever incarnation of it lives by now. One
-- that is asked already is joined: one act, two lines of audit. Answers which one that is, 0: none
-- lives, and whether it was asked already.
with meant as (
  select n.id from {{.schema}}.workers w join {{.schema}}.workers n on n.instance = w.instance and n.status = 'live'
  where w.id = $1::bigint order by n.id desc limit 1
), asked as (
  update {{.schema}}.workers set drain_at = clock_timestamp()
  where id = (select m.id from meant m) and status = 'live' and drain_at is null returning id, name, false as joined
), told as (
  select id, name, joined from asked
  union all
  select w.id, w.name, true from {{.schema}}.workers w where w.id = (select m.id from meant m) and w.status = 'live' and w.drain_at is not null
), noted as (
  insert into {{.schema}}.audit (actor, action, target, reason, detail)
  select $2::text, 'drain_worker', 'worker ' || t.name || '#' || t.id, $3::text, jsonb_build_object('worker', t.id, 'joined', t.joined) from told t
)
select coalesce((select t.id from told t), 0), coalesce((select t.joined from told t), false)
