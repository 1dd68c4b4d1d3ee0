-- As append: a session that planned while nothing had work would read all mailboxes for each command of a bulk act.
alter function {{.schema}}.command(bigint, text, integer, bigint, bigint, text, text, text)
  set enable_seqscan = off set enable_bitmapscan = off set jit = off;
alter function {{.schema}}.lock_record(bigint) set enable_seqscan = off set enable_bitmapscan = off set jit = off;

-- Makes a record's mailbox exist and, if unclaimed, due now with wants cleared,
-- and wakes. The caller holds the record's row lock. It runs within command, and plans with its settings.
create or replace function {{.schema}}.make_due(the_record bigint, at timestamptz) returns void
language plpgsql as $$
begin
  insert into {{.schema}}.mailboxes (record_id, due_at) values (the_record, at) on conflict do nothing;
  if not found then
    -- coalesce: "is null" would let the planner take the index of what is due for it.
    update {{.schema}}.mailboxes m set due_at = at, wants = null, wants_due_at = null
      where m.record_id = the_record and coalesce(m.claimed_by, 0) = 0 and (m.due_at > at or m.wants is not null);
  end if;
  perform {{.schema}}.wake(the_record::text);
end
$$;
