-- Writes the outcomes of many records in one group commit. The record arrays have one element
-- per record and are sorted by record id; the cp_ and del_ arrays name their record.
--
-- dispositions: 0 keep, 1 settle, 2 hand back, 3 release.
-- due_ats: when an ended claim is due again; 'infinity': not by itself; '-infinity': now.
--
-- The result speaks of records by their position in record_ids, from 1:
--   moved    the registry's epoch is another one: nothing was written
--   fenced   the claim was lost, or is one from before a failover
--   skipped  locked by somebody
--   gone     the claim ended as asked
--   looked   asked to end and its head read under its lock (looked_heads); an appender has the others
--   waiting  has commands or dead letter retries that wait
-- What is in none of them was written, and the claim goes on. But where some are fenced or
-- skipped nothing at all was written, since counts belong to the whole batch: send the others again.
--
-- cp_redeliver_to: events up to it may have run before; null: the caller does not know.
-- An attempt that is written ahead is kept with the claim that wrote it (started_by).
--
-- Order of locks: barrier, mailboxes by id, what flush_extras writes, records, checkpoints, counts. Mailboxes
-- and records are taken with skip locked, so a flush waits for nobody but the registry.
--
-- The rows stay locked from one statement to the next, so that later ones reach them by ctid,
-- and arrays are reached by position: no statement here looks a thousand records up among a
-- thousand. Plans are pinned: statistics of tables that fill and empty in seconds are always wrong.
create function {{.schema}}.flush(
  worker bigint, epoch bigint, lane smallint, batch bigint,
  record_ids bigint[], tokens bigint[], heads bigint[], cursors bigint[],
  dispositions smallint[], due_ats timestamptz[], clears boolean[],
  wanting jsonb,
  cp_record bigint[], cp_consumer integer[], cp_seq bigint[], cp_state text[],
  cp_attempt integer[], cp_granted integer[], cp_crashes integer[],
  cp_next timestamptz[], cp_first timestamptz[], cp_code text[], cp_live_from bigint[], cp_redeliver_to bigint[],
  del_record bigint[], del_consumer integer[],
  extras jsonb, counts jsonb,
  out moved boolean, out fenced integer[], out skipped integer[], out gone integer[],
  out looked integer[], out looked_heads bigint[], out waiting integer[]
)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  n integer := cardinality(record_ids);
  boxes tid[]; -- the mailboxes' places; at the end, those of rows that go
  ending integer[];
  l_at integer[];
  l_tids tid[];
  l_heads bigint[];
  busy bigint[];
  settled integer[];
  settled_records tid[];
  settled_boxes tid[];
  leaving integer[];
  staying integer[];
  at timestamptz := clock_timestamp();
begin
  moved := false; fenced := '{}'; skipped := '{}'; gone := '{}'; looked := '{}'; looked_heads := '{}'; waiting := '{}';
  -- After a failover: what it has in hand may be about events that are lost, whose seqs others will get.
  if exists (select from {{.schema}}.workers w where w.id = worker and w.timeline <> {{.schema}}.timeline()) then
    fenced := array(select generate_series(1, n));
    return;
  end if;
  perform pg_advisory_xact_lock_shared({{.schema}}.barrier_key());
  if (select m.registry_epoch from {{.schema}}.meta m where m.one) <> epoch then
    moved := true;
    return;
  end if;

  select coalesce(array_agg(x.ctid), '{}'), coalesce(array_agg(x.i), '{}') into boxes, l_at
  from (select m.ctid, f.i::integer
        from unnest(record_ids, tokens) with ordinality as f(id, token, i)
        cross join lateral (
          select m.ctid from {{.schema}}.mailboxes m
          where m.record_id = f.id and m.claimed_by is not distinct from worker and m.token = f.token -- not "=": its index would be read through for each record
          offset 0 for no key update skip locked) m
        order by f.i) x;
  if cardinality(boxes) < n then
    select coalesce(array_agg(u.i) filter (where not y.mine), '{}'), coalesce(array_agg(u.i) filter (where y.mine), '{}')
      into fenced, skipped
      from (select generate_series(1, n) except select unnest(l_at)) as u(i),
        lateral (select exists (select from {{.schema}}.mailboxes m
          where m.record_id = record_ids[u.i] and m.claimed_by is not distinct from worker and m.token = tokens[u.i]) as mine) y;
    return;
  end if;

  if extras is not null then
    perform {{.schema}}.flush_extras(worker, record_ids, extras, at);
  end if;

  ending := array(select i::integer from unnest(dispositions) with ordinality as u(d, i) where d in (1, 2));
  if cardinality(ending) > 0 then
    -- The row lock returns the row's newest version; what else is looked at comes in new statements.
    select coalesce(array_agg(x.i), '{}'), coalesce(array_agg(x.ctid), '{}'), coalesce(array_agg(x.head), '{}') into l_at, l_tids, l_heads
    from (select u.i, r.ctid, r.head
          from unnest(ending) as u(i)
          cross join lateral (select r.ctid, r.head from {{.schema}}.records r where r.id = record_ids[u.i] offset 0 for no key update skip locked) r
          order by u.i) x;
    busy := array(
      select c.record_id from unnest(l_at) as u(i)
      cross join lateral (select c.record_id from {{.schema}}.commands c where c.record_id = record_ids[u.i] and c.applied_at is null offset 0) c
      union all
      select d.record_id from unnest(l_at) as u(i)
      cross join lateral ( -- a range, and an order, as in load_checkpoints: two partial indexes have the condition
        select d.record_id from {{.schema}}.dead_letters d
        where d.record_id between record_ids[u.i] and record_ids[u.i] and d.status = 'retrying' order by d.record_id offset 0) d
      where dispositions[u.i] = 1);
    select coalesce(array_agg(x.i) filter (where x.ends), '{}'),
      coalesce(array_agg(x.i) filter (where x.ends and x.settles), '{}'),
      coalesce(array_agg(x.tid) filter (where x.ends and x.settles), '{}'),
      coalesce(array_agg(boxes[x.i]) filter (where x.ends and x.settles), '{}'),
      coalesce(array_agg(x.i) filter (where x.waits), '{}')
    into gone, settled, settled_records, settled_boxes, waiting
    from (select l.i, l.tid, dispositions[l.i] = 1 as settles, w.waits, l.head = heads[l.i] and not w.waits as ends
          from unnest(l_at, l_tids, l_heads) as l(i, tid, head),
            lateral (select cardinality(busy) > 0 and record_ids[l.i] = any (busy) as waits) w) x;
    looked := l_at;
    looked_heads := l_heads;
    if cardinality(settled) > 0 then
      update {{.schema}}.records r set cursor = r.head where r.ctid = any (settled_records);
      delete from {{.schema}}.mailboxes m where m.ctid = any (settled_boxes);
    end if;
  else
    settled := '{}';
  end if;

  if cardinality(settled) < n then
    gone := gone || array(select i::integer from unnest(dispositions) with ordinality as u(d, i) where d = 3);
    leaving := array(select i from unnest(gone) as u(i) where dispositions[i] <> 1);
    if cardinality(leaving) > 0 then
      perform {{.schema}}.flush_leave(record_ids, boxes, cursors, dispositions, due_ats, clears, wanting, leaving, at);
    end if;
    staying := array(select generate_series(1, n) except select unnest(settled) except select unnest(leaving));
    update {{.schema}}.mailboxes m
    set cursor = greatest(m.cursor, cursors[u.i]),
        crashes = case when clears[u.i] then 0 else m.crashes end,
        unclean = m.unclean and not clears[u.i]
    from unnest(staying) as u(i)
    where m.ctid = boxes[u.i] and (m.cursor < cursors[u.i] or clears[u.i]);
  end if;

  if cardinality(cp_record) > 0 then
    insert into {{.schema}}.checkpoints as c (record_id, consumer_id, seq, state, attempt, granted, crashes,
      next_attempt_at, first_failed_at, error_code, live_from, redeliver_to, started_by)
    select u.record, u.consumer, u.seq, u.state, u.attempt, u.granted, u.crashes, u.next, u.first, u.code, u.live_from, u.redeliver_to,
      case when u.state = 'started' then (select m.token from {{.schema}}.mailboxes m where m.record_id = u.record) end
    from unnest(cp_record, cp_consumer, cp_seq, cp_state, cp_attempt, cp_granted, cp_crashes, cp_next, cp_first, cp_code, cp_live_from, cp_redeliver_to)
      as u(record, consumer, seq, state, attempt, granted, crashes, next, first, code, live_from, redeliver_to)
    on conflict (record_id, consumer_id) do update set seq = excluded.seq, state = excluded.state,
      attempt = excluded.attempt, granted = excluded.granted, crashes = excluded.crashes,
      next_attempt_at = excluded.next_attempt_at, first_failed_at = excluded.first_failed_at,
      error_code = excluded.error_code, live_from = excluded.live_from,
      redeliver_to = excluded.redeliver_to, started_by = excluded.started_by;
  end if;
  if cardinality(del_record) > 0 then
    -- A join could begin with the table: planned while that was small, it compares all rows with all that are to go.
    boxes := array(
      select k.place from unnest(del_record, del_consumer) as u(record, consumer)
      cross join lateral (
        select c.ctid as place from {{.schema}}.checkpoints c where c.record_id = u.record and c.consumer_id = u.consumer offset 0 for update
      ) k);
    delete from {{.schema}}.checkpoints c where c.ctid = any (boxes);
  end if;

  if counts is not null then
    insert into {{.schema}}.consumer_health as h (consumer_id, worker_id, lane, last_batch, completed, failed, skipped, dead, retried,
      last_event_at, last_success_at, last_failure_at)
    select c.consumer, worker, lane, batch, c.completed, c.failed, c.skipped, c.dead, c.retried, c.last_event, c.last_success, c.last_failure
    from jsonb_to_recordset(counts) as c(consumer integer, completed bigint, failed bigint, skipped bigint, dead bigint, retried bigint,
      last_event timestamptz, last_success timestamptz, last_failure timestamptz)
    on conflict (consumer_id, worker_id, lane) do update set last_batch = excluded.last_batch,
      completed = h.completed + excluded.completed, failed = h.failed + excluded.failed,
      skipped = h.skipped + excluded.skipped, dead = h.dead + excluded.dead, retried = h.retried + excluded.retried,
      last_event_at = greatest(h.last_event_at, excluded.last_event_at),
      last_success_at = greatest(h.last_success_at, excluded.last_success_at),
      last_failure_at = greatest(h.last_failure_at, excluded.last_failure_at)
    where h.last_batch < excluded.last_batch; -- a batch that is sent again counts once
  end if;
end
$$;
