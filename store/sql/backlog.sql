-- What waits, cheaply at any size: one index entry, and two counts that stop at 10,001. And of each consumer that
-- is to run, whether no live worker runs it.
select
  coalesce((select extract(epoch from clock_timestamp() - m.due_at) from {{.schema}}.mailboxes m
            where m.claimed_by is null and m.due_at < 'infinity' order by m.due_at limit 1), 0)::double precision,
  (select count(*) from (select from {{.schema}}.dead_letters d where d.status in ('open', 'retrying') limit 10001) d),
  (select count(*) from (select from {{.schema}}.checkpoints k where k.state = 'parked' limit 10001) k),
  (select jsonb_object_agg(c.name, not exists (select from {{.schema}}.workers w where w.status = 'live' and c.name = any (w.consumers)))
   from {{.schema}}.consumers c where c.status in ('active', 'backfilling') and not c.contract_only)
