-- Counts what waits, as in version 1, if this worker leads or nobody does; returns the term, null where another leads.
--
-- What has a mailbox is counted once, for all consumers that stand at the cursor, as most do: with each consumer
-- by itself three hundred of them would look at five thousand records each, and then at each other's. What is
-- another's place on a record is then taken into account, row by row.
create or replace function {{.schema}}.keep_health(worker bigint, ttl interval, most integer) returns bigint
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
set plan_cache_mode = force_custom_plan as $$
#variable_conflict use_column
declare
  l record;
  the_term bigint;
  at timestamptz := clock_timestamp();
  capped boolean;
  each integer; -- how many rows of one consumer are looked at: as many as asked for, of all together ten times as many
begin
  if not exists (select from {{.schema}}.workers w where w.id = worker and w.status = 'live') then
    return null;
  end if;
  if not exists (select from {{.schema}}.leases x where x.name = 'health') then
    insert into {{.schema}}.leases (name, expires_at) values ('health', '-infinity') on conflict do nothing;
  end if;
  select x.holder, x.term, x.expires_at into l from {{.schema}}.leases x where x.name = 'health' for update skip locked;
  if not found then
    return null;
  end if;
  at := clock_timestamp(); -- not earlier than whoever has just renewed it
  the_term := l.term;
  if l.holder is distinct from worker then
    -- A time that is further away than any leader sets it is of before the clock was set back.
    if l.expires_at > at and l.expires_at <= at + ttl and exists (select from {{.schema}}.workers w where w.id = l.holder and w.status = 'live') then
      return null;
    end if;
    the_term := l.term + 1;
  end if;
  update {{.schema}}.leases x set holder = worker, term = the_term, expires_at = at + ttl where x.name = 'health';

  each := (select least(most, greatest(10 * most / greatest(count(*), 1), 50)) from {{.schema}}.consumers c where c.status not in ('retired', 'disabled') and not c.contract_only);
  capped := (select count(*) > most from (select from {{.schema}}.mailboxes m order by m.record_id limit most + 1) m);
  with c as materialized (
    select c.id, c.status from {{.schema}}.consumers c where c.status not in ('retired', 'disabled') and not c.contract_only
  ), boxes as materialized (
    -- place: in the order of what has waited longest; those with nothing before the cursor come last.
    select m.record_id, r.head, n.pending, n.created_at, row_number() over (order by n.created_at, m.record_id) as place
    from (select m.record_id, m.cursor from {{.schema}}.mailboxes m order by m.record_id limit most) m
    cross join lateral (select r.head, greatest(r.cursor, m.cursor) as base from {{.schema}}.records r where r.id = m.record_id offset 0) r
    left join lateral (
      select r.head - e.seq + 1 as pending, e.created_at
      from {{.schema}}.events e where e.record_id = m.record_id and e.seq > r.base order by e.seq limit 1) n on r.head > r.base
  ), every as materialized (
    -- Of a consumer that has no row on any of them.
    select coalesce(sum(b.pending), 0) as pending,
      coalesce(array_agg(b.created_at order by b.place) filter (where b.pending is not null), '{}') as times
    from boxes b
  ), rows as materialized (
    -- Of those that keep no record from settling.
    select c.id, k.record_id, k.seq, k.state, k.error_code
    from c cross join lateral (
      select k.* from {{.schema}}.checkpoints k where k.consumer_id = c.id order by k.consumer_id, k.record_id limit each) k
    where c.status in ('paused', 'backfilling')
    union all
    select c.id, k.record_id, k.seq, k.state, k.error_code
    from c cross join lateral (
      select k.* from {{.schema}}.checkpoints k where k.consumer_id = c.id and k.state = 'parked' order by k.consumer_id, k.record_id limit each) k
    where c.status = 'active'
  ), own as materialized (
    -- Where a row says another position than the cursor; instead: what the cursor would have said.
    select k.consumer_id as id, b.record_id, k.seq, k.state, b.head, coalesce(b.pending, 0) as instead, case when b.pending is not null then b.place end as place
    from boxes b
    cross join lateral (
      select k.consumer_id, k.seq, k.state from {{.schema}}.checkpoints k
      where k.record_id between b.record_id and b.record_id order by k.record_id, k.consumer_id offset 0) k
    union all
    select x.id, x.record_id, x.seq, x.state, r.head, 0, null
    from rows x
    cross join lateral (select r.head from {{.schema}}.records r where r.id = x.record_id offset 0) r
    where not exists (select from {{.schema}}.mailboxes m where m.record_id = x.record_id)
  ), apart as materialized (
    select o.id, sum(coalesce(n.pending, 0) - o.instead) as more, count(n.pending) filter (where o.state = 'backoff') as backoff, min(n.created_at) as oldest
    from own o
    left join lateral (
      select o.head - e.seq + 1 as pending, e.created_at
      from {{.schema}}.events e where e.record_id = o.record_id and e.seq > o.seq order by e.seq limit 1) n on o.head > o.seq
    group by o.id
  ), first as materialized (
    -- The first place on which a consumer has no row: the first that is another than its number.
    select p.id, coalesce(min(p.n) filter (where p.place <> p.n), count(*) + 1) as place
    from (select o.id, o.place, row_number() over (partition by o.id order by o.place) as n from own o where o.place is not null) p
    group by p.id
  ), stands as materialized (
    select x.id, count(*) as n, count(*) filter (where x.state = 'parked') as parked,
      count(*) filter (where x.state = 'parked' and x.error_code = 'unsupported_version') as unsupported
    from rows x group by x.id
  )
  insert into {{.schema}}.consumer_backlog as h (consumer_id, term, counted_at, pending, pending_exact, retrying, parked, unsupported, dead, oldest_at)
  select c.id, the_term, at, every.pending + coalesce(a.more, 0), not capped and c.status <> 'backfilling' and coalesce(s.n, 0) < each,
    coalesce(a.backoff, 0) + d.retrying, coalesce(s.parked, 0), coalesce(s.unsupported, 0), d.open,
    least(every.times[coalesce(f.place, 1)], a.oldest)
  from c
  cross join every
  left join apart a on a.id = c.id
  left join first f on f.id = c.id
  left join stands s on s.id = c.id
  cross join lateral (
    select count(*) filter (where d.status = 'open') as open, count(*) filter (where d.status = 'retrying') as retrying
    from (select d.status from {{.schema}}.dead_letters d where d.consumer_id = c.id and d.status in ('open', 'retrying') limit most) d) d
  on conflict (consumer_id) do update set term = excluded.term, counted_at = excluded.counted_at, pending = excluded.pending,
    pending_exact = excluded.pending_exact, retrying = excluded.retrying, parked = excluded.parked, unsupported = excluded.unsupported,
    dead = excluded.dead, oldest_at = excluded.oldest_at;
  delete from {{.schema}}.consumer_backlog h
    where not exists (select from {{.schema}}.consumers c where c.id = h.consumer_id and c.status not in ('retired', 'disabled') and not c.contract_only);
  return the_term;
end
$$;
