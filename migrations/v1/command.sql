-- Locks a record for whoever is about to give it a command: who makes work locks the record first, and what
-- the next statement reads is then the latest. With the owner's rights, as command: an operator needs none on the tables.
create function {{.schema}}.lock_record(the_record bigint) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform from {{.schema}}.records r where r.id = the_record for no key update;
  return found;
end
$$;

-- Gives an operator's command to a record: command, audit, mailbox and wake in one
-- transaction. Only the record's claim holder applies it; commands.applied_at says when.
create function {{.schema}}.command(
  the_record bigint, kind text, consumer integer, seq bigint, dead_letter bigint, actor text, reason text, target text
) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  new_id bigint;
  at timestamptz := clock_timestamp();
begin
  perform from {{.schema}}.records r where r.id = the_record for no key update; -- who makes work locks the record first
  if not found then
    raise exception 'no record %', the_record using errcode = 'KL006';
  end if;
  insert into {{.schema}}.commands (record_id, kind, consumer_id, seq, dead_letter_id, actor, reason)
    values (the_record, command.kind, command.consumer, coalesce(command.seq, 0), command.dead_letter, command.actor, coalesce(command.reason, ''))
    returning id into new_id;
  insert into {{.schema}}.audit (actor, action, target, reason, detail)
    values (command.actor, command.kind, command.target, coalesce(command.reason, ''), jsonb_build_object('command', new_id));
  perform {{.schema}}.make_due(the_record, at);
  return new_id;
end
$$;

-- Makes a record's mailbox exist and, if unclaimed, due now with wants cleared,
-- and wakes. The caller holds the record's row lock.
create function {{.schema}}.make_due(the_record bigint, at timestamptz) returns void
language plpgsql as $$
begin
  insert into {{.schema}}.mailboxes (record_id, due_at) values (the_record, at) on conflict do nothing;
  if not found then
    update {{.schema}}.mailboxes m set due_at = at, wants = null, wants_due_at = null
      where m.record_id = the_record and m.claimed_by is null and (m.due_at > at or m.wants is not null);
  end if;
  perform {{.schema}}.wake(the_record::text);
end
$$;

-- Not for whoever may use the schema: an application that appends does not operate.
revoke all on function {{.schema}}.lock_record(bigint) from public;
revoke all on function {{.schema}}.command(bigint, text, integer, bigint, bigint, text, text, text) from public;
