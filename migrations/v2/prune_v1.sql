-- prune_holds and prune_events as version 1 has them, for the way back.
create or replace function {{.schema}}.prune_holds(ids bigint[], floors bigint[], olds bigint[])
returns table (i integer, reason text, consumer text, status text, upto bigint)
language plpgsql stable
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
#variable_conflict use_column
begin
  return query
  with w as (
    select u.i::integer, u.id, u.floor, u.old, r.head, greatest(r.cursor, m.cursor) as base
    from unnest(ids, floors, olds) with ordinality as u(id, floor, old, i)
    join {{.schema}}.records r on r.id = u.id
    left join {{.schema}}.mailboxes m on m.record_id = u.id
  ), behind as materialized (
    select w.i, w.base, c.name, c.status, p.upto
    from w
    cross join {{.schema}}.consumers c
    left join {{.schema}}.checkpoints k on k.record_id = w.id and k.consumer_id = c.id
    cross join lateral (select coalesce(k.seq, case
      when c.status <> 'backfilling' then w.base
      when c.start_kind = 'at' then {{.schema}}.seq_before(w.id, w.floor, w.head, c.start_time)
      else 0 end) as upto) p
    where c.status not in ('disabled', 'retired') and p.upto < w.old
  )
  select b.i, 'consumer', b.name, b.status, b.upto from behind b
  union all
  -- Nobody is known to be behind, and yet the record is not done: no consumer is active.
  select w.i, 'unsettled', null, null, w.base from w
  where w.base < w.old and not exists (select from behind b where b.i = w.i and b.upto <= b.base)
  union all
  select w.i, 'dead_letter', c.name, d.status, min(d.seq) - 1
  -- Not "status in": the index of the open ones, which begins with the consumer, would be read through for each record.
  from w join {{.schema}}.dead_letters d on d.record_id = w.id and d.resolved_at is null and d.seq <= w.old
  left join {{.schema}}.consumers c on c.id = d.consumer_id
  group by w.i, c.name, d.status
  union all
  select w.i, 'command', c.name, a.kind, min(coalesce(d.seq, a.seq)) - 1
  from w join {{.schema}}.commands a on a.record_id = w.id and a.applied_at is null
  left join {{.schema}}.dead_letters d on d.id = a.dead_letter_id
  left join {{.schema}}.consumers c on c.id = coalesce(d.consumer_id, a.consumer_id)
  where coalesce(d.seq, a.seq) between 1 and w.old
  group by w.i, c.name, a.kind;
end
$$;

create or replace function {{.schema}}.prune_events(
  after_record bigint, before timestamptz, max_records integer, max_events bigint, apply boolean,
  actor text, reason text, line bigint,
  out passed bigint, out events bigint, out records bigint, out dead_letters bigint, out skips bigint, out noted bigint, out held jsonb
)
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
#variable_conflict use_column
declare
  ids bigint[];
  floors bigint[];
  olds bigint[];
  ends bigint[];
  cut integer;
begin
  events := 0; records := 0; dead_letters := 0; skips := 0; noted := line; held := '[]';
  if apply then
    perform pg_advisory_xact_lock({{.schema}}.prune_key());
    -- No consumer appears between the look and the deletion. What follows sees what came before.
    perform pg_advisory_xact_lock_shared({{.schema}}.barrier_key());
  end if;

  with x as materialized (
    select r.id, coalesce(p.seq, 0) as floor, {{.schema}}.seq_before(r.id, coalesce(p.seq, 0), r.head, before) as old
    from (select r.id, r.head from {{.schema}}.records r where r.id > after_record order by r.id limit max_records) r
    left join {{.schema}}.pruned p on p.record_id = r.id)
  select max(x.id), coalesce(array_agg(x.id order by x.id) filter (where x.old > x.floor), '{}'),
      array_agg(x.floor order by x.id) filter (where x.old > x.floor), array_agg(x.old order by x.id) filter (where x.old > x.floor)
    into passed, ids, floors, olds from x;
  if cardinality(ids) = 0 then
    return;
  end if;

  with h as materialized (
    select h.* from {{.schema}}.prune_holds(ids, floors, olds) h
  ), free as (
    select u.i::integer, u.floor, greatest(least(u.old, coalesce((select min(h.upto) from h where h.i = u.i), u.old)), u.floor) as upto
    from unnest(floors, olds) with ordinality as u(floor, old, i)
  ), summed as materialized (
    select f.i, f.floor, f.upto, sum(f.upto - f.floor) over (order by f.i) as upto_here from free f
  ), cuts as materialized (
    select min(s.i) as i from summed s where apply and s.upto_here > max_events
  )
  select (select c.i from cuts c),
    (select array_agg(case when s.i = c.i then s.upto - (s.upto_here - max_events)::bigint else s.upto end order by s.i)
     from summed s, cuts c where s.i <= coalesce(c.i, s.i)),
    (select coalesce(jsonb_agg(jsonb_build_object('reason', g.reason, 'consumer', g.consumer, 'status', g.status,
        'records', g.records, 'events', g.events, 'sample', g.sample)), '[]')
     from (
       select h.reason, h.consumer, h.status, count(*) as records, sum(olds[h.i] - greatest(h.upto, floors[h.i])) as events,
         to_jsonb((array_agg(jsonb_build_object('tenant', r.tenant, 'record', r.record_key, 'seq', greatest(h.upto, floors[h.i]) + 1) order by h.i))[1:5]) as sample
       from h, cuts c, {{.schema}}.records r
       where h.i < coalesce(c.i, h.i + 1) and r.id = ids[h.i]
       group by h.reason, h.consumer, h.status) g)
    into cut, ends, held;
  if cut is not null then
    passed := ids[cut] - 1; -- it comes again, for the rest
  end if;
  select coalesce(sum(u.upto - u.floor), 0), count(*) filter (where u.upto > u.floor and u.i is distinct from cut) into events, records
    from unnest(floors, ends) with ordinality as u(floor, upto, i) where u.i <= cardinality(ends);
  if not apply or events = 0 then
    return;
  end if;

  perform set_config('keyline.pruning', pg_current_xact_id()::text, true);
  -- By place: nobody updates these rows, and a join would make the planner read the tables through.
  delete from {{.schema}}.events e where e.ctid = any (array(
    select x.ctid from unnest(ids, floors, ends) as u(id, floor, upto),
      lateral (select x.ctid from {{.schema}}.events x where x.record_id = u.id and x.seq > u.floor and x.seq <= u.upto offset 0) x));
  perform set_config('keyline.pruning', '', true);
  delete from {{.schema}}.skips s where s.ctid = any (array(
    select x.ctid from unnest(ids, ends) as u(id, upto),
      lateral (select x.ctid from {{.schema}}.skips x where x.record_id = u.id and x.seq <= u.upto offset 0) x));
  get diagnostics skips = row_count;
  delete from {{.schema}}.dead_letters d where d.ctid = any (array(
    select x.ctid from unnest(ids, ends) as u(id, upto),
      lateral (select x.ctid from {{.schema}}.dead_letters x
               where x.record_id = u.id and x.seq <= u.upto and x.status in ('delivered', 'resolved') offset 0) x));
  get diagnostics dead_letters = row_count;
  delete from {{.schema}}.failures f where f.ctid = any (array(
    select x.ctid from unnest(ids, ends) as u(id, upto),
      lateral (select x.ctid from {{.schema}}.failures x where x.record_id = u.id and x.seq <= u.upto offset 0) x));
  insert into {{.schema}}.pruned as p (record_id, seq)
    select u.id, u.upto from unnest(ids, floors, ends) as u(id, floor, upto) where u.upto > u.floor
    on conflict (record_id) do update set seq = excluded.seq;
  noted := {{.schema}}.prune_noted(line, actor, reason, 'events from before ' || before,
    jsonb_build_object('events', events, 'records', records, 'dead_letters', dead_letters, 'skips', skips));
end
$$;
