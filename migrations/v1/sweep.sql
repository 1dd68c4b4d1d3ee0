-- What a registry change leaves to be done on records, in chunks, by whichever worker comes
-- along. consumers.sweep says what, sweep_record how far it is: the last record passed, or the
-- highest bigint once all were passed and only those in sweep_left remain.
--
--   wake:     every record that the change may concern is due now, for whoever hosts what.
--   backfill: the consumer gets its row at its start position on every record.
--   clear:    the consumer's rows go.
--
-- Who makes work locks the record first. Records that somebody has locked (an appender, for as
-- long as its transaction lasts) are passed over and come again until none is left.
--
-- outcome: 'more' call again; 'waiting' what is left is locked; 'done'; 'backfilled' the consumer
-- is to be activated, under the registry barrier. No row: nothing to do, or others are at it.
create function {{.schema}}.sweep(max_records integer, passed integer[])
returns table (consumer integer, outcome text)
language plpgsql
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
#variable_conflict use_column
declare
  c record;
  over constant bigint := 9223372036854775807;
  upto bigint;
  candidates bigint[];
  locked bigint[];
  at timestamptz := clock_timestamp();
begin
  select s.id, s.sweep, s.sweep_record, s.status, s.start_kind, s.start_time into c
    from {{.schema}}.consumers s where s.sweep is not null and s.id <> all (passed)
    order by s.id limit 1 for no key update skip locked;
  if not found then
    return;
  end if;
  if c.sweep = 'clear' then
    return query select c.id, {{.schema}}.sweep_clear(c.id, max_records);
    return;
  end if;

  if c.sweep_record < over then
    if c.sweep = 'wake' then
      -- Each list ends where its limit ends it, and the chunk where the shorter one does.
      upto := least(
        (select max(x.id) from (select m.record_id as id from {{.schema}}.mailboxes m
          where m.record_id > c.sweep_record order by m.record_id limit max_records) x having count(*) = max_records),
        (select max(x.id) from (select k.record_id as id from {{.schema}}.checkpoints k
          where k.consumer_id = c.id and k.record_id > c.sweep_record order by k.record_id limit max_records) x having count(*) = max_records));
      upto := coalesce(upto, over);
      candidates := array(
        select m.record_id from {{.schema}}.mailboxes m
        where m.record_id > c.sweep_record and m.record_id <= upto and m.claimed_by is null
          and (m.due_at > at or m.wants is not null) -- a backlog that is due for anybody is left alone
        union
        select k.record_id from {{.schema}}.checkpoints k join {{.schema}}.records r on r.id = k.record_id
        where c.status = 'active' and k.consumer_id = c.id and k.record_id > c.sweep_record and k.record_id <= upto and k.seq < r.head);
    else
      candidates := array(select r.id from {{.schema}}.records r where r.id > c.sweep_record order by r.id limit max_records);
      upto := case when cardinality(candidates) < max_records then over else candidates[max_records] end;
    end if;
    locked := array(
      select r.id from unnest(candidates) as u(id) join {{.schema}}.records r on r.id = u.id
      order by r.id for no key update of r skip locked);
    insert into {{.schema}}.sweep_left (consumer_id, record_id)
      select c.id, u.id from unnest(candidates) as u(id) where cardinality(locked) < cardinality(candidates) and u.id <> all (locked)
      on conflict do nothing;
    update {{.schema}}.consumers s set sweep_record = upto where s.id = c.id;
  else
    locked := array(
      select r.id from {{.schema}}.sweep_left l join {{.schema}}.records r on r.id = l.record_id
      where l.consumer_id = c.id order by r.id limit max_records for no key update of r skip locked);
    delete from {{.schema}}.sweep_left l where l.consumer_id = c.id and l.record_id = any (locked);
    upto := null;
  end if;

  if c.sweep = 'backfill' then
    perform {{.schema}}.sweep_backfill(c.id, locked, case when c.start_kind = 'at' then c.start_time end);
  elsif cardinality(locked) > 0 then
    perform {{.schema}}.sweep_wake(c.id, c.status = 'active', locked, at);
  end if;

  if upto is not null or (cardinality(locked) > 0 and exists (select from {{.schema}}.sweep_left l where l.consumer_id = c.id)) then
    return query select c.id, 'more';
  elsif exists (select from {{.schema}}.sweep_left l where l.consumer_id = c.id) then
    return query select c.id, 'waiting';
  elsif c.sweep = 'backfill' then
    return query select c.id, 'backfilled';
  else
    update {{.schema}}.consumers s set sweep = null, sweep_record = 0 where s.id = c.id;
    return query select c.id, 'done';
  end if;
end
$$;

-- Makes records due now that have a mailbox, or on which an active consumer is behind. Their rows are locked.
create function {{.schema}}.sweep_wake(consumer integer, active boolean, locked bigint[], at timestamptz) returns void
language plpgsql
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
#variable_conflict use_column
begin
  if active then
    insert into {{.schema}}.mailboxes (record_id, due_at)
      select r.id, at from unnest(locked) as u(id)
      join {{.schema}}.records r on r.id = u.id
      join {{.schema}}.checkpoints k on k.record_id = u.id and k.consumer_id = consumer
      where k.seq < r.head
      on conflict do nothing;
  end if;
  update {{.schema}}.mailboxes m set due_at = least(m.due_at, at), wants = null, wants_due_at = null
    from unnest(locked) as u(id)
    where m.record_id = u.id and m.claimed_by is null and (m.due_at > at or m.wants is not null);
  perform {{.schema}}.wake('more');
end
$$;

-- Writes a new consumer's rows at its start position. A settled record that has nothing from the
-- start time on needs none.
create function {{.schema}}.sweep_backfill(consumer integer, locked bigint[], start_time timestamptz) returns void
language plpgsql
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
#variable_conflict use_column
begin
  if start_time is null then
    insert into {{.schema}}.checkpoints (record_id, consumer_id, seq, state, live_from)
      select r.id, consumer, 0, 'ready', r.head from unnest(locked) as u(id) join {{.schema}}.records r on r.id = u.id
      on conflict do nothing;
    return;
  end if;
  insert into {{.schema}}.checkpoints (record_id, consumer_id, seq, state, live_from)
    select r.id, consumer, coalesce(e.seq, 0), 'ready', r.head
    from unnest(locked) as u(id)
    join {{.schema}}.records r on r.id = u.id
    left join lateral (
      select e.seq from {{.schema}}.events e where e.record_id = r.id and e.created_at < start_time order by e.seq desc limit 1) e on true
    where e.seq is distinct from r.head or r.cursor <> r.head
       or exists (select from {{.schema}}.mailboxes m where m.record_id = r.id)
    on conflict do nothing;
end
$$;

-- Deletes rows of a consumer that is disabled or retired; then what its rows held back is woken.
create function {{.schema}}.sweep_clear(consumer integer, max_records integer) returns text
language plpgsql
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
#variable_conflict use_column
declare
  ids bigint[];
begin
  ids := array(
    select k.record_id from {{.schema}}.checkpoints k where k.consumer_id = consumer
    order by k.record_id limit max_records for update skip locked);
  delete from {{.schema}}.checkpoints k using unnest(ids) as u(id) where k.record_id = u.id and k.consumer_id = consumer;
  if cardinality(ids) > 0 then
    return 'more';
  elsif exists (select from {{.schema}}.checkpoints k where k.consumer_id = consumer) then
    return 'waiting';
  end if;
  delete from {{.schema}}.sweep_left l where l.consumer_id = consumer;
  update {{.schema}}.consumers s set sweep = 'wake', sweep_record = 0 where s.id = consumer;
  return 'more';
end
$$;
