-- The rare parts of a flush: dead letters, failures, skips, commands, as one JSON object
-- of arrays. Each insert adds nothing when it is repeated.
create or replace function {{.schema}}.flush_extras(worker bigint, mine bigint[], extras jsonb, at timestamptz) returns void
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
      started_by = case when x.started then (select m.token from {{.schema}}.mailboxes m where m.record_id = x.record) end,
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
