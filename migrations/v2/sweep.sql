-- Sweeps as in v1, with look-ups that depend neither on when a session has planned (where a registration was the first thing to be
-- done, the tables were empty) nor on statistics: a join of a chunk with what it is about may begin with the latter, and
-- "is null" lets the planner read what is due instead of a range of records.
create or replace function {{.schema}}.sweep(max_records integer, passed integer[])
returns table (consumer integer, outcome text)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
set plan_cache_mode = force_custom_plan as $$
#variable_conflict use_column
declare
  c record;
  over constant bigint := 9223372036854775807;
  upto bigint;
  candidates bigint[];
  locked bigint[];
  rest boolean;
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
        where m.record_id > c.sweep_record and m.record_id <= upto and coalesce(m.claimed_by, 0) = 0
          and (m.due_at > at or m.wants is not null) -- a backlog that is due for anybody is left alone
        union
        select k.record_id from {{.schema}}.checkpoints k join {{.schema}}.records r on r.id = k.record_id
        where c.status = 'active' and k.consumer_id = c.id and k.record_id > c.sweep_record and k.record_id <= upto and k.seq < r.head);
    else
      candidates := array(select r.id from {{.schema}}.records r where r.id > c.sweep_record order by r.id limit max_records);
      upto := case when cardinality(candidates) < max_records then over else candidates[max_records] end;
    end if;
    locked := array(
      select r.id from unnest(candidates) as u(id)
      cross join lateral (select r.id from {{.schema}}.records r where r.id = u.id offset 0 for no key update skip locked) r);
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

  rest := exists (select from {{.schema}}.sweep_left l where l.consumer_id = c.id);
  if upto < over or (rest and (upto = over or cardinality(locked) > 0)) then
    return query select c.id, 'more';
  elsif rest then
    return query select c.id, 'waiting';
  elsif c.sweep = 'backfill' then
    return query select c.id, 'backfilled';
  else
    update {{.schema}}.consumers s set sweep = null, sweep_record = 0 where s.id = c.id;
    return query select c.id, 'done';
  end if;
end
$$;

create or replace function {{.schema}}.sweep_wake(consumer integer, active boolean, locked bigint[], at timestamptz) returns void
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off set plan_cache_mode = force_custom_plan as $$
#variable_conflict use_column
begin
  if active then
    insert into {{.schema}}.mailboxes (record_id, due_at)
      select u.id, at from unnest(locked) as u(id)
      cross join lateral (select r.head from {{.schema}}.records r where r.id = u.id offset 0) r
      cross join lateral (select k.seq from {{.schema}}.checkpoints k where k.record_id = u.id and k.consumer_id = consumer offset 0) k
      where k.seq < r.head
      on conflict do nothing;
  end if;
  update {{.schema}}.mailboxes m set due_at = least(m.due_at, at), wants = null, wants_due_at = null
    where m.ctid = any (array(
        select b.place from unnest(locked) as u(id)
        cross join lateral (select b.ctid as place from {{.schema}}.mailboxes b where b.record_id = u.id offset 0) b))
      and coalesce(m.claimed_by, 0) = 0 and (m.due_at > at or m.wants is not null);
  perform {{.schema}}.wake('more');
end
$$;

create or replace function {{.schema}}.sweep_backfill(consumer integer, locked bigint[], start_time timestamptz) returns void
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
set plan_cache_mode = force_custom_plan as $$
#variable_conflict use_column
begin
  if start_time is null then
    insert into {{.schema}}.checkpoints (record_id, consumer_id, seq, state, live_from)
      select r.id, consumer, 0, 'ready', r.head from unnest(locked) as u(id)
      cross join lateral (select * from {{.schema}}.records r where r.id = u.id offset 0) r
      on conflict do nothing;
    return;
  end if;
  insert into {{.schema}}.checkpoints (record_id, consumer_id, seq, state, live_from)
    select r.id, consumer, coalesce(e.seq, 0), 'ready', r.head
    from unnest(locked) as u(id)
    cross join lateral (select * from {{.schema}}.records r where r.id = u.id offset 0) r
    left join lateral (
      select e.seq from {{.schema}}.events e where e.record_id = r.id and e.created_at < start_time order by e.seq desc limit 1) e on true
    where e.seq is distinct from r.head or r.cursor <> r.head
       or exists (select from {{.schema}}.mailboxes m where m.record_id = r.id)
    on conflict do nothing;
end
$$;

create or replace function {{.schema}}.sweep_clear(consumer integer, max_records integer) returns text
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
set plan_cache_mode = force_custom_plan as $$
#variable_conflict use_column
declare
  rows tid[];
begin
  rows := array(
    select k.ctid from {{.schema}}.checkpoints k where k.consumer_id = consumer
    order by k.record_id limit max_records for update skip locked);
  delete from {{.schema}}.checkpoints k where k.ctid = any (rows);
  if cardinality(rows) > 0 then
    return 'more';
  elsif exists (select from {{.schema}}.checkpoints k where k.consumer_id = consumer) then
    return 'waiting';
  end if;
  delete from {{.schema}}.sweep_left l where l.consumer_id = consumer;
  update {{.schema}}.consumers s set sweep = 'wake', sweep_record = 0 where s.id = consumer;
  return 'more';
end
$$;

-- What frees a lost worker's records is planned for each chunk, too.
alter function {{.schema}}.recover(integer) set plan_cache_mode = force_custom_plan;
