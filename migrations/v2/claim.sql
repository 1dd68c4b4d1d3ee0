-- Claims mailboxes with work for a worker: one short statement's worth of locks and a
-- small result, since an appender waits for an uncommitted update of a mailbox.
--
-- Locks first, then updates by place in a new statement: one that did both, or that joined other
-- tables, would read them as of before the lock. FOR UPDATE strength, so that a record is
-- passed over while a HandleTx transaction of an earlier holder is still open.
--
-- after_due: where to start looking; '-infinity' for an unbounded claim. only_record: claim this one,
-- due or not. Plans are pinned to the partial indexes: statistics of a table that
-- fills and empties in seconds are always wrong.
--
-- Many workers at full load would all begin at the same place, where the others are. Worse than looking in vain: a
-- row that somebody has claimed since this statement began is locked before it is found to be
-- taken, and stays so until the commit; its holder's group commit finds it locked and is refused (seen: with 8
-- processes every second one). So each says, outside of its transaction, how far it has come, and those that do not look at
-- everything begin there.
create or replace function {{.schema}}.claim(worker bigint, max_records integer, hosted integer[], after_due timestamptz, only_record bigint)
returns table (record_id bigint, token bigint, crashes integer, unclean boolean, due_at timestamptz)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  boxes tid[]; -- locked, so that their places stay
  came_to timestamptz;
  at timestamptz := clock_timestamp(); -- a volatile call is no index condition
begin
  perform from {{.schema}}.workers w where w.id = worker and w.status = 'live' and w.timeline = {{.schema}}.timeline() for key share;
  if not found then
    raise exception 'worker % is not live, or joined before a failover', worker using errcode = 'KL020';
  end if;
  if only_record is not null then
    boxes := array(select m.ctid from {{.schema}}.mailboxes m
      -- coalesce: "is null" would let the planner take the index of what is due for it.
      where m.record_id = only_record and coalesce(m.claimed_by, 0) = 0 for update skip locked);
  else
    if after_due > '-infinity' then
      after_due := greatest(after_due, (select 'epoch'::timestamptz + interval '1 microsecond' * f.last_value from {{.schema}}.claim_front f));
    end if;
    select coalesce(array_agg(x.ctid), '{}'), max(x.due_at) into boxes, came_to
    from (select m.ctid, m.due_at from {{.schema}}.mailboxes m
          where m.claimed_by is null and m.due_at <= at and m.due_at >= after_due
          order by m.due_at limit max_records for update skip locked) x;
    if cardinality(boxes) < max_records then
      if cardinality(hosted) > 0 then
        boxes := boxes || array(select m.ctid from {{.schema}}.mailboxes m
          where m.claimed_by is null and m.wants is not null and m.wants_due_at <= at and m.wants && hosted
            and m.due_at > at
          order by m.wants_due_at limit max_records - cardinality(boxes) for update skip locked);
      end if;
    elsif came_to > 'epoch' then
      perform setval('{{.schema}}.claim_front', (extract(epoch from came_to) * 1000000)::bigint);
    end if;
  end if;
  if cardinality(boxes) = 0 then
    return;
  end if;
  return query
    update {{.schema}}.mailboxes m
    set claimed_by = worker, claimed_at = at, token = nextval('{{.schema}}.tokens'), wants = null, wants_due_at = null
    where m.ctid = any (boxes)
    returning m.record_id, m.token, m.crashes, m.unclean, m.due_at;
end
$$;
