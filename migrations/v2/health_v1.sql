-- keep_health as version 1 has it, for the way back.
create or replace function {{.schema}}.keep_health(worker bigint, ttl interval, most integer) returns bigint
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
#variable_conflict use_column
declare
  l record;
  the_term bigint;
  at timestamptz := clock_timestamp();
  capped boolean;
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
  the_term := l.term;
  if l.holder is distinct from worker then
    -- A time that is further away than any leader sets it is of before the clock was set back.
    if l.expires_at > at and l.expires_at <= at + ttl and exists (select from {{.schema}}.workers w where w.id = l.holder and w.status = 'live') then
      return null;
    end if;
    the_term := l.term + 1;
  end if;
  update {{.schema}}.leases x set holder = worker, term = the_term, expires_at = at + ttl where x.name = 'health';

  capped := (select count(*) > most from (select from {{.schema}}.mailboxes m order by m.record_id limit most + 1) m);
  with c as materialized (
    select c.id, c.status from {{.schema}}.consumers c where c.status not in ('retired', 'disabled') and not c.contract_only
  ), boxes as materialized (
    select m.record_id, m.cursor from {{.schema}}.mailboxes m order by m.record_id limit most
  ), rows as materialized (
    -- Of those that keep no record from settling.
    select c.id, k.record_id, k.seq, k.state, k.error_code
    from c cross join lateral (
      select k.* from {{.schema}}.checkpoints k where k.consumer_id = c.id order by k.consumer_id, k.record_id limit most) k
    where c.status in ('paused', 'backfilling')
    union all
    select c.id, k.record_id, k.seq, k.state, k.error_code
    from c cross join lateral (
      select k.* from {{.schema}}.checkpoints k where k.consumer_id = c.id and k.state = 'parked' order by k.consumer_id, k.record_id limit most) k
    where c.status = 'active'
  ), behind as materialized (
    select c.id, b.record_id, coalesce(k.seq, greatest(r.cursor, b.cursor)) as seq, r.head, k.state
    from boxes b join {{.schema}}.records r on r.id = b.record_id cross join c
    left join {{.schema}}.checkpoints k on k.record_id = b.record_id and k.consumer_id = c.id
    union all
    select x.id, x.record_id, x.seq, r.head, x.state
    from rows x join {{.schema}}.records r on r.id = x.record_id
    where not exists (select from {{.schema}}.mailboxes m where m.record_id = x.record_id)
  )
  insert into {{.schema}}.consumer_backlog as h (consumer_id, term, counted_at, pending, pending_exact, retrying, parked, unsupported, dead, oldest_at)
  select c.id, the_term, at, coalesce(b.pending, 0), not capped and c.status <> 'backfilling' and x.n < most,
    coalesce(b.backoff, 0) + d.retrying, x.parked, x.unsupported, d.open, b.oldest
  from c
  left join lateral (
    select sum(b.head - e.seq + 1) as pending, count(*) filter (where b.state = 'backoff') as backoff, min(e.created_at) as oldest
    from behind b
    cross join lateral (select e.seq, e.created_at from {{.schema}}.events e where e.record_id = b.record_id and e.seq > b.seq order by e.seq limit 1) e
    where b.id = c.id and b.head > b.seq) b on true
  cross join lateral (
    select count(*) as n, count(*) filter (where x.state = 'parked') as parked,
      count(*) filter (where x.state = 'parked' and x.error_code = 'unsupported_version') as unsupported
    from rows x where x.id = c.id) x
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
