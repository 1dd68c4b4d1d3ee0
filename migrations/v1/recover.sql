-- Marks a worker lost if its beat is still the one that the observer saw for a whole lease; null: it is not. With the owner's
-- rights, as recover: operators may do that, and nothing else, to workers and claims.
create function {{.schema}}.mark_lost_row(worker bigint, seen_beat bigint) returns uuid
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  marked uuid;
begin
  update {{.schema}}.workers w set status = 'lost', ended_at = clock_timestamp()
    where w.id = worker and w.status = 'live' and w.beat = seen_beat
    returning w.instance into marked;
  return marked;
end
$$;

-- Marks a worker lost, and ends its database sessions: a frozen one may hold the arming lock or a HandleTx open. That
-- with the caller's rights: fellow workers have one role, which the owner need not be a member of.
create function {{.schema}}.mark_lost(worker bigint, seen_beat bigint) returns boolean
language plpgsql as $$
declare
  marked uuid := {{.schema}}.mark_lost_row(worker, seen_beat);
begin
  if marked is null then
    return false;
  end if;
  begin
    perform pg_terminate_backend(a.pid) from pg_stat_activity a
      where a.application_name = 'keyline ' || marked and a.pid <> pg_backend_pid()
        and not exists (select from {{.schema}}.workers w where w.instance = marked and w.status = 'live');
  exception when insufficient_privilege then
    -- It had another role. It is lost all the same; whoever runs workers under two roles lets each be a member of the other.
    raise warning 'the sessions of lost worker % could not be ended: %', worker, sqlerrm;
  end;
  return true;
end
$$;

-- Gives back attempts that were written ahead on records that change hands without a crash:
-- they go on counting as runs, but against no budget.
create function {{.schema}}.forgive_started(record_ids bigint[]) returns void
language plpgsql as $$
begin
  update {{.schema}}.checkpoints k set state = 'ready', granted = least(k.granted + 1, k.attempt)
  from (select c.record_id, c.consumer_id from {{.schema}}.checkpoints c
        where c.record_id = any (record_ids) and c.state = 'started' for update skip locked) s
  where k.record_id = s.record_id and k.consumer_id = s.consumer_id;
  update {{.schema}}.dead_letters d set started = false, granted = least(d.granted + 1, d.attempt)
  where d.id in (select l.id from {{.schema}}.dead_letters l
                 where l.record_id = any (record_ids) and l.status = 'retrying' and l.started for update skip locked);
end
$$;

-- Frees claims whose holder is not live, at most max_records a call; returns how many. A lost worker's
-- records become suspects; one that left (it fenced itself, or stopped) charges nothing. One that left
-- while handlers of it went on running keeps its claims until ended_at, a lease later.
create function {{.schema}}.recover(max_records integer) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
#variable_conflict use_column
declare
  dead bigint[];
  ids bigint[];
  at timestamptz := clock_timestamp();
begin
  -- From the workers to their claims: the other way round every look, of every worker, would read
  -- all claims there are. (Only live workers claim, and a row with claims is not to be deleted.)
  dead := array(
    select w.id from {{.schema}}.workers w
    where w.status in ('left', 'lost')
      and not (w.status = 'left' and w.ended_at > at and w.ended_at <= at + w.lease) -- after a step of the clock: now
      and exists (select from {{.schema}}.mailboxes m where m.claimed_by = w.id));
  if cardinality(dead) = 0 then
    return 0;
  end if;
  -- Found by the claimant in one statement, locked in order in the next: together, the order
  -- makes the planner read all mailboxes by their ids to find the few.
  ids := array(select m.record_id from {{.schema}}.mailboxes m where m.claimed_by = any (dead) limit 4 * max_records);
  ids := array(
    select m.record_id
    from unnest(ids) as u(id) join {{.schema}}.mailboxes m on m.record_id = u.id
    where m.claimed_by is not null and m.claimed_by = any (dead)
    order by u.id limit max_records
    for no key update of m skip locked);
  if cardinality(ids) = 0 then
    return 0;
  end if;
  perform {{.schema}}.forgive_started(array(
    select m.record_id from unnest(ids) as u(id) join {{.schema}}.mailboxes m on m.record_id = u.id
    where not exists (select from {{.schema}}.workers w where w.id = m.claimed_by and w.status = 'lost')));
  update {{.schema}}.mailboxes m
  set claimed_by = null, claimed_at = null, token = nextval('{{.schema}}.tokens'), due_at = at, unclean = true,
      crashes = m.crashes + coalesce((select 1 from {{.schema}}.workers w where w.id = m.claimed_by and w.status = 'lost'), 0)
  from unnest(ids) as u(id)
  where m.record_id = u.id and m.claimed_by is not null;
  perform {{.schema}}.wake('more');
  return cardinality(ids);
end
$$;

-- Frees a worker's claims that nothing in its process holds (a claim whose
-- answer was lost). Hand-backs charge nothing.
create function {{.schema}}.hand_back_orphans(worker bigint, held_records bigint[], held_tokens bigint[], before timestamptz) returns integer
language plpgsql as $$
#variable_conflict use_column
declare
  ids bigint[];
  at timestamptz := clock_timestamp();
begin
  ids := array(
    select m.record_id from {{.schema}}.mailboxes m
    where m.claimed_by = worker and m.claimed_at < before
      and not exists (select from unnest(held_records, held_tokens) as h(id, token) where h.id = m.record_id and h.token = m.token)
    order by m.record_id
    for no key update skip locked);
  perform {{.schema}}.forgive_started(ids);
  update {{.schema}}.mailboxes m
  set claimed_by = null, claimed_at = null, token = nextval('{{.schema}}.tokens'), due_at = at, unclean = true
  from unnest(ids) as u(id)
  where m.record_id = u.id;
  if cardinality(ids) > 0 then
    perform {{.schema}}.wake('more');
  end if;
  return cardinality(ids);
end
$$;

revoke all on function {{.schema}}.mark_lost_row(bigint, bigint) from public;
revoke all on function {{.schema}}.recover(integer) from public;
