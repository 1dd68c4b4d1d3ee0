-- Frees claims whose holder is not live, at most max_records a call; returns how many. A lost worker's
-- records become suspects; one that left (it fenced itself, or stopped) charges nothing. One that left
-- while handlers of it went on running keeps its claims until ended_at, a lease later.
--
-- That is further away than a lease only after a step of the clock, if now is read after the rows are: a
-- worker that leaves between the two would look like it, and its records would be delivered
-- beside handlers that still run.
create or replace function {{.schema}}.recover(max_records integer) returns integer
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
      and not (w.status = 'left' and w.ended_at > at and w.ended_at <= clock_timestamp() + w.lease) -- after a step of the clock: now
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
