-- The rare parts of a flush: dead letters, failures, skips, commands, as one JSON object
-- of arrays. Each insert adds nothing when it is repeated.
--
-- What changes is looked up row by row. A session that planned while the tables were small would have joins begin with them, and compare
-- each row that there is with each that is to change; and "status in", or "applied_at is null", would be answered from all that is open.
create or replace function {{.schema}}.flush_extras(worker bigint, mine bigint[], extras jsonb, at timestamptz) returns void
language plpgsql as $$
#variable_conflict use_column
declare
  u record;
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

  for u in
    select x.* from jsonb_to_recordset(extras -> 'dead_updates') as x(id bigint, record bigint, seq bigint, consumer integer, status text,
      attempt integer, granted integer, crashes integer, started boolean, due timestamptz, reason text, code text, message text,
      actor text, note text, at timestamptz)
    where x.record = any (mine)
  loop
    if u.id <> 0 then
      update {{.schema}}.dead_letters d
      set status = u.status, attempt = u.attempt, granted = u.granted, crashes = u.crashes, started = u.started,
          started_by = case when u.started then (select m.token from {{.schema}}.mailboxes m where m.record_id = u.record) end,
          due_at = case when u.status = 'retrying' then u.due end,
          reason = coalesce(u.reason, d.reason),
          error_code = coalesce(u.code, d.error_code), error_message = coalesce(u.message, d.error_message),
          failed_at = case when u.status = 'open' then u.at else d.failed_at end,
          resolved_at = case when u.status in ('delivered', 'resolved') then u.at end,
          resolved_by = case when u.status in ('delivered', 'resolved') then u.actor end,
          resolution = case when u.status in ('delivered', 'resolved') then u.note end
      where d.id = u.id and d.record_id is not distinct from u.record;
    elsif u.status in ('delivered', 'resolved') then
      -- Whatever dead letter the head delivery of a consumer has, which is closed with it.
      update {{.schema}}.dead_letters d
      set status = u.status, due_at = null, started = false, attempt = greatest(d.attempt, u.attempt),
          resolved_at = u.at, resolved_by = u.actor, resolution = u.note
      where d.record_id = u.record and d.seq = u.seq and d.consumer_id = u.consumer and coalesce(d.status, '') in ('open', 'retrying');
    end if;
  end loop;

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

  for u in
    select x.* from jsonb_to_recordset(extras -> 'applied') as x(id bigint, record bigint, done boolean, detail text)
    where x.record = any (mine)
  loop
    update {{.schema}}.commands c set applied_at = at, done = u.done, detail = u.detail
    where c.id = u.id and c.record_id is not distinct from u.record and c.done is null; -- that is, not applied
  end loop;
end
$$;
