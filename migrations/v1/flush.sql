-- Writes the outcomes of many records in one group commit. All record arrays
-- have one element per record and are sorted by record id; so are the cp_ and del_ arrays by record.
--
-- dispositions: 0 keep, 1 settle, 2 hand back, 3 release.
-- status: 0 kept, 1 gone (the claim ended as asked), 2 fenced (nothing written),
--         3 epoch moved (nothing written for any record), 4 locked by somebody: send it again.
--
-- Order of locks: barrier, mailboxes by id, records, checkpoints, inserts. Mailboxes and
-- records are taken with skip locked, so a flush waits for nobody but the registry.
create function {{.schema}}.flush(
  worker bigint, epoch bigint, lane smallint, batch bigint,
  record_ids bigint[], tokens bigint[], heads bigint[], cursors bigint[],
  dispositions smallint[], due_ats timestamptz[], clears boolean[],
  wanting jsonb,
  cp_record bigint[], cp_consumer integer[], cp_seq bigint[], cp_state text[],
  cp_attempt integer[], cp_granted integer[], cp_crashes integer[],
  cp_next timestamptz[], cp_first timestamptz[], cp_code text[], cp_live_from bigint[],
  del_record bigint[], del_consumer integer[],
  extras jsonb, counts jsonb
) returns table (record_id bigint, status smallint, head bigint, pending boolean, busy boolean)
language plpgsql
set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_column
declare
  mine bigint[];
  locked bigint[];
  locked_heads bigint[];
  waiting bigint[] := '{}';
  gone bigint[] := '{}';
  at timestamptz := clock_timestamp();
  woken record;
begin
  perform pg_advisory_xact_lock_shared({{.schema}}.barrier_key());
  if (select m.registry_epoch from {{.schema}}.meta m) <> epoch then
    return query select u.id, 3::smallint, 0::bigint, false, false from unnest(record_ids) as u(id);
    return;
  end if;

  mine := array(
    select m.record_id from unnest(record_ids, tokens) as f(id, token)
    join {{.schema}}.mailboxes m on m.record_id = f.id
    where m.claimed_by is not distinct from worker and m.token = f.token -- not "=": its index would be read through for each record
    order by m.record_id
    for no key update of m skip locked);
  if cardinality(mine) < cardinality(record_ids) then
    return query
      select f.id, (case when m.record_id is null then 2 else 4 end)::smallint, 0::bigint, false, false
      from unnest(record_ids, tokens) as f(id, token)
      left join {{.schema}}.mailboxes m on m.record_id = f.id and m.claimed_by = worker and m.token = f.token
      where f.id <> all (mine);
    if cardinality(mine) = 0 then
      return;
    end if;
  end if;

  if extras is not null then
    perform {{.schema}}.flush_extras(worker, mine, extras, at);
  end if;

  if 1 = any (dispositions) or 2 = any (dispositions) then
    -- The row lock returns the row's newest version; what else is looked at comes in new statements.
    select array_agg(r.id), array_agg(r.head), coalesce(array_agg(r.id) filter (where r.head = r.seen), '{}')
    into locked, locked_heads, gone
    from (select r.id, r.head, f.head as seen
          from unnest(record_ids, heads, dispositions) as f(id, head, disposition)
          join {{.schema}}.records r on r.id = f.id
          where f.disposition in (1, 2) and f.id = any (mine)
          order by r.id for no key update of r skip locked) r;
    waiting := array(
      select c.record_id from {{.schema}}.commands c where c.applied_at is null and c.record_id = any (locked)
      union
      select d.record_id from {{.schema}}.dead_letters d where d.status = 'retrying' and d.record_id = any (locked)
        and exists (select from unnest(record_ids, dispositions) as f(id, disposition) where f.id = d.record_id and f.disposition = 1));
    if cardinality(waiting) > 0 then
      gone := array(select g.id from unnest(gone) as g(id) where g.id <> all (waiting));
    end if;
  end if;

  with settled as (
    select f.id from unnest(record_ids, dispositions) as f(id, disposition)
    where f.disposition = 1 and f.id = any (gone)
  ), moved as (
    update {{.schema}}.records r set cursor = r.head from settled s where r.id = s.id
  )
  delete from {{.schema}}.mailboxes m using settled s where m.record_id = s.id;

  update {{.schema}}.mailboxes m
  set cursor = greatest(m.cursor, f.cursor),
      crashes = case when f.clear then 0 else m.crashes end,
      unclean = m.unclean and not f.clear,
      claimed_by = case when f.ends then null else m.claimed_by end,
      claimed_at = case when f.ends then null else m.claimed_at end,
      token = case when f.ends then nextval('{{.schema}}.tokens') else m.token end,
      due_at = case when not f.ends then m.due_at
                    when f.disposition = 2 then coalesce(f.due_at, 'infinity')
                    else least(coalesce(f.due_at, at), at + interval '1 second') end,
      wants = case when f.disposition = 2 and f.ends and wanting ? f.id::text
                   then array(select w::integer from jsonb_array_elements_text(wanting -> f.id::text -> 'consumers') w) end,
      wants_due_at = case when f.disposition = 2 and f.ends and wanting ? f.id::text
                          then (wanting -> f.id::text ->> 'due_at')::timestamptz end
  from (
    select u.*, u.disposition = 3 or (u.disposition = 2 and u.id = any (gone)) as ends
    from unnest(record_ids, cursors, dispositions, due_ats, clears) as u(id, cursor, disposition, due_at, clear)
    where u.id = any (mine) and not (u.disposition = 1 and u.id = any (gone))
  ) f
  where m.record_id = f.id;

  if cardinality(cp_record) > 0 then
    insert into {{.schema}}.checkpoints as c (record_id, consumer_id, seq, state, attempt, granted, crashes,
      next_attempt_at, first_failed_at, error_code, live_from)
    select u.record, u.consumer, u.seq, u.state, u.attempt, u.granted, u.crashes, u.next, u.first, u.code, u.live_from
    from unnest(cp_record, cp_consumer, cp_seq, cp_state, cp_attempt, cp_granted, cp_crashes, cp_next, cp_first, cp_code, cp_live_from)
      as u(record, consumer, seq, state, attempt, granted, crashes, next, first, code, live_from)
    where u.record = any (mine)
    on conflict (record_id, consumer_id) do update set seq = excluded.seq, state = excluded.state,
      attempt = excluded.attempt, granted = excluded.granted, crashes = excluded.crashes,
      next_attempt_at = excluded.next_attempt_at, first_failed_at = excluded.first_failed_at,
      error_code = excluded.error_code, live_from = excluded.live_from;
  end if;
  if cardinality(del_record) > 0 then
    delete from {{.schema}}.checkpoints c using unnest(del_record, del_consumer) as u(record, consumer)
    where c.record_id = u.record and c.consumer_id = u.consumer and u.record = any (mine);
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

  -- A hand-back that leaves due work wakes whoever sleeps.
  for woken in
    select m.record_id as id, m.due_at <= at as due, m.wants from {{.schema}}.mailboxes m
    where m.record_id = any (array(
        select u.id from unnest(record_ids, dispositions) as u(id, disposition)
        where u.disposition = 3 and u.id = any (mine) or u.disposition = 2 and u.id = any (gone)))
      and (m.due_at <= at or m.wants_due_at <= at)
  loop
    perform {{.schema}}.wake(case when woken.due then woken.id::text
      else 'wants:' || woken.id || ':' || array_to_string(woken.wants, ',') end);
  end loop;

  return query select g.id, 1::smallint, 0::bigint, false, false from unnest(gone) as g(id);
  if cardinality(gone) < cardinality(mine) then
    return query
      select f.id, (case when f.disposition = 3 then 1 else 0 end)::smallint,
        coalesce(locked_heads[array_position(locked, f.id)], 0), f.id = any (waiting),
        f.disposition in (1, 2) and array_position(locked, f.id) is null
      from unnest(record_ids, dispositions) as f(id, disposition)
      where f.id = any (mine) and f.id <> all (gone);
  end if;
end
$$;

-- The rare parts of a flush: dead letters, failures, skips, commands, as one JSON object
-- of arrays. Each insert adds nothing when it is repeated.
create function {{.schema}}.flush_extras(worker bigint, mine bigint[], extras jsonb, at timestamptz) returns void
language plpgsql as $$
#variable_conflict use_column
begin
  insert into {{.schema}}.dead_letters as d (record_id, seq, consumer_id, event_id, attempt, granted, crashes, reason, error_code, error_message,
    first_failed_at, failed_at)
  select x.record, x.seq, x.consumer, x.event, x.attempt, 0, 0, x.reason, x.code, x.message, x.first, x.at
  from jsonb_to_recordset(extras -> 'dead_letters') as x(record bigint, seq bigint, consumer integer, event uuid, attempt integer,
    reason text, code text, message text, first timestamptz, at timestamptz)
  where x.record = any (mine)
  on conflict on constraint dead_letters_delivery do update
    set attempt = excluded.attempt, reason = excluded.reason, error_code = excluded.error_code,
        error_message = excluded.error_message, failed_at = excluded.failed_at,
        status = 'open', due_at = null, resolved_at = null, resolved_by = null, resolution = null, started = false;

  update {{.schema}}.dead_letters d
  set status = x.status, attempt = x.attempt, granted = x.granted, crashes = x.crashes, started = x.started,
      due_at = case when x.status = 'retrying' then x.due end,
      reason = coalesce(x.reason, d.reason),
      error_code = coalesce(x.code, d.error_code), error_message = coalesce(x.message, d.error_message),
      failed_at = case when x.status = 'open' then x.at else d.failed_at end,
      resolved_at = case when x.status in ('delivered', 'resolved') then x.at end,
      resolved_by = case when x.status in ('delivered', 'resolved') then x.actor end,
      resolution = case when x.status in ('delivered', 'resolved') then x.note end
  from jsonb_to_recordset(extras -> 'dead_updates') as x(id bigint, record bigint, status text, attempt integer, granted integer,
    crashes integer, started boolean, due timestamptz, reason text, code text, message text, actor text, note text, at timestamptz)
  where d.id = x.id and d.record_id = x.record and x.record = any (mine);

  -- Without an id: whatever dead letter the head delivery of a consumer has, which is closed with it.
  update {{.schema}}.dead_letters d
  set status = x.status, due_at = null, started = false, attempt = greatest(d.attempt, x.attempt),
      resolved_at = x.at, resolved_by = x.actor, resolution = x.note
  from jsonb_to_recordset(extras -> 'dead_updates') as x(id bigint, record bigint, seq bigint, consumer integer, status text, attempt integer,
    actor text, note text, at timestamptz)
  where x.id = 0 and d.record_id = x.record and d.seq = x.seq and d.consumer_id = x.consumer and x.record = any (mine)
    and d.status in ('open', 'retrying') and x.status in ('delivered', 'resolved');

  insert into {{.schema}}.failures (record_id, seq, consumer_id, attempt, at, error_code, error_message, stack, worker_id)
  select x.record, x.seq, x.consumer, x.attempt, x.at, x.code, x.message, x.stack, worker
  from jsonb_to_recordset(extras -> 'failures') as x(record bigint, seq bigint, consumer integer, attempt integer, at timestamptz,
    code text, message text, stack text)
  where x.record = any (mine)
  on conflict do nothing;

  insert into {{.schema}}.skips (record_id, seq, consumer_id, attempt, code, reason, at)
  select x.record, x.seq, x.consumer, x.attempt, x.code, x.reason, x.at
  from jsonb_to_recordset(extras -> 'skips') as x(record bigint, seq bigint, consumer integer, attempt integer, code text, reason text,
    at timestamptz)
  where x.record = any (mine)
  on conflict do nothing;

  update {{.schema}}.commands c set applied_at = at, done = x.done, detail = x.detail
  from jsonb_to_recordset(extras -> 'applied') as x(id bigint, record bigint, done boolean, detail text)
  where c.id = x.id and c.record_id = x.record and x.record = any (mine) and c.applied_at is null;
end
$$;
