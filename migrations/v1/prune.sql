-- Retention. A record loses its oldest events only: seq says up to where, so that what is missing
-- above it is a hole. In a table of its own, since a record's row is what appenders wait for.
create table {{.schema}}.pruned (
  record_id bigint primary key,
  seq bigint not null,
  constraint pruned_seq check (seq >= 1)
);

-- Prunes exclude each other by this lock.
create function {{.schema}}.prune_key() returns bigint language sql immutable parallel safe
return pg_catalog.hashtextextended('keyline prune {{.schema}}', 0);

-- The last seq from before a time, among those above a seq and up to another; the lower bound if there is none.
-- created_at grows with seq, so that it is found by halving: a hundred thousand young events cost seventeen looks.
create function {{.schema}}.seq_before(the_record bigint, above bigint, upto bigint, at timestamptz) returns bigint
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
#variable_conflict use_column
declare
  low bigint := above; -- from before
  high bigint := upto; -- not
  made timestamptz;
begin
  select e.created_at into made from {{.schema}}.events e where e.record_id = the_record and e.seq > above order by e.seq limit 1;
  if made is null or made >= at then
    return above;
  end if;
  select e.created_at into made from {{.schema}}.events e where e.record_id = the_record and e.seq <= upto order by e.seq desc limit 1;
  if made < at then
    return upto;
  end if;
  while high - low > 1 loop
    select e.created_at into made from {{.schema}}.events e
      where e.record_id = the_record and e.seq >= (low + high) / 2 order by e.seq limit 1;
    if made < at then
      low := (low + high) / 2;
    else
      high := (low + high) / 2;
    end if;
  end loop;
  return low;
end
$$;

-- What keeps the events of records that are from before a time: each row says up to which seq a record
-- may be pruned for its reason. A position only grows, and what is closed is not opened again, so that what is
-- found here holds for ever, but for consumers that come new: see the barrier in prune_events.
create function {{.schema}}.prune_holds(ids bigint[], floors bigint[], olds bigint[])
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

-- Adds what a chunk of a prune has done to the prune's line of the audit, or begins one; returns its id. For the
-- functions below, which run with the owner's rights: operators rewrite no audit.
create function {{.schema}}.prune_noted(line bigint, actor text, reason text, target text, counts jsonb) returns bigint
language plpgsql as $$
begin
  update {{.schema}}.audit a
    set detail = a.detail || (select jsonb_object_agg(c.key, c.value::bigint + coalesce(a.detail ->> c.key, '0')::bigint) from jsonb_each_text(counts) c)
    where a.id = line and a.action = 'prune' and a.actor = prune_noted.actor and a.session_user_name = session_user;
  if not found then
    insert into {{.schema}}.audit (actor, action, target, reason, detail)
      values (prune_noted.actor, 'prune', prune_noted.target, coalesce(prune_noted.reason, ''), counts)
      returning id into line;
  end if;
  return line;
end
$$;

-- Deletes the settled events from before a time that nothing needs any more, with what else speaks of them
-- (skips, closed dead letters, failures), of at most max_records records after after_record and at most
-- max_events events. Without apply it only counts.
--
-- The one place where events are deleted: append_only lets it pass.
--
-- passed: the last record that is done with, null where there was none left. held: what keeps older events, as
-- an array of {reason, consumer, status, records, events, sample}.
create function {{.schema}}.prune_events(
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

-- Deletes the oldest failures from before a time; returns how many. By place, as above.
create function {{.schema}}.prune_failures(before timestamptz, max_failures integer, actor text, reason text, line bigint, out pruned integer, out noted bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
begin
  noted := line;
  delete from {{.schema}}.failures f where f.ctid = any (array(
    select o.ctid from {{.schema}}.failures o where o.at < before order by o.at limit max_failures));
  get diagnostics pruned = row_count;
  if pruned > 0 then
    noted := {{.schema}}.prune_noted(line, actor, reason, 'failures from before ' || before, jsonb_build_object('failures', pruned));
  end if;
end
$$;

-- Deletes workers that ended before a time and hold nothing; returns how many. What they have counted
-- goes to the rows of worker 0, so that the sums stay.
create function {{.schema}}.prune_workers(before timestamptz, max_workers integer, actor text, reason text, line bigint, out pruned integer, out noted bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
#variable_conflict use_column
declare
  ids bigint[];
begin
  noted := line;
  ids := array(
    select w.id from {{.schema}}.workers w
    where w.status in ('left', 'lost') and w.ended_at < before and not exists (select from {{.schema}}.mailboxes m where m.claimed_by = w.id)
    order by w.id limit max_workers for update skip locked);
  insert into {{.schema}}.consumer_health as t (consumer_id, worker_id, lane, completed, failed, skipped, dead, retried,
      last_event_at, last_success_at, last_failure_at)
    select h.consumer_id, 0, 0, sum(h.completed), sum(h.failed), sum(h.skipped), sum(h.dead), sum(h.retried),
      max(h.last_event_at), max(h.last_success_at), max(h.last_failure_at)
    from {{.schema}}.consumer_health h where h.worker_id = any (ids) group by h.consumer_id
    on conflict (consumer_id, worker_id, lane) do update set completed = t.completed + excluded.completed, failed = t.failed + excluded.failed,
      skipped = t.skipped + excluded.skipped, dead = t.dead + excluded.dead, retried = t.retried + excluded.retried,
      last_event_at = greatest(t.last_event_at, excluded.last_event_at),
      last_success_at = greatest(t.last_success_at, excluded.last_success_at),
      last_failure_at = greatest(t.last_failure_at, excluded.last_failure_at);
  delete from {{.schema}}.consumer_health h where h.worker_id = any (ids);
  delete from {{.schema}}.workers w where w.id = any (ids);
  pruned := cardinality(ids);
  if pruned > 0 then
    noted := {{.schema}}.prune_noted(line, actor, reason, 'workers that ended before ' || before, jsonb_build_object('workers', pruned));
  end if;
end
$$;

-- Not for whoever may use the schema.
revoke all on function {{.schema}}.prune_noted(bigint, text, text, text, jsonb) from public;
revoke all on function {{.schema}}.prune_events(bigint, timestamptz, integer, bigint, boolean, text, text, bigint) from public;
revoke all on function {{.schema}}.prune_failures(timestamptz, integer, text, text, bigint) from public;
revoke all on function {{.schema}}.prune_workers(timestamptz, integer, text, text, bigint) from public;
