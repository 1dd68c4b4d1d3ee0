-- Appends one event to a record's stream, inside the caller's transaction. The
-- lock on the record's row, held to the end of that transaction, is the order:
-- seq order is commit order, without gaps.
--
-- This is the way of an event that asks for nothing rare and is in order; append_full does the rest, and says what is
-- wrong. It is short because each statement and expression of a function costs a session anew in each transaction, most
-- where many sessions share a core (docs/decisions/0028-a-short-way-to-append.md).
create or replace function {{.schema}}.append(
  record_key text,
  event_type text,
  payload jsonb,
  tenant text default '',
  version integer default 1,
  headers jsonb default '{}',
  idempotency_key text default null,
  event_id uuid default null,
  occurred_at timestamptz default null,
  expected_seq bigint default null
) returns {{.schema}}.appended
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  this_id uuid := append.event_id;
  the_record bigint;
  new_head bigint;
  at timestamptz;
begin
  if this_id is null then
    this_id := {{.schema}}.uuidv7();
  end if;
  -- For a known record this costs no more than an update; it uses up an id. What is null where it may not be makes
  -- the condition null, and so is left to append_full.
  insert into {{.schema}}.records as r (tenant, record_key, head)
    select coalesce(append.tenant, ''), append.record_key, 1
      from {{.schema}}.meta m
      where m.one and append.idempotency_key is null and append.expected_seq is null
        and {{.schema}}.usable_key(append.record_key)
        and octet_length(coalesce(append.tenant, '')) <= 512
        and coalesce(append.version, 1) >= 1
        and btrim(append.event_type, E' \t\n\r\f\x0B') <> '' and octet_length(append.event_type) <= 255
        and append.event_type <> all (m.in_process_types) and not m.registry_strict
        and (append.occurred_at is null
          or append.occurred_at between '0001-01-01 00:00:00+00' and '9999-12-31 23:59:59.999999+00')
        and (append.headers is null or append.headers = '{}'
          or jsonb_typeof(append.headers) = 'object' and octet_length(append.headers::text) <= 65536
             and not append.headers ? 'keyline_fallback_key'
             and not jsonb_path_exists(append.headers, 'strict $.* ? (@.type() != "string")'))
        and octet_length(append.payload::text) <= m.payload_limit
    on conflict on constraint records_name do update set head = r.head + 1
    returning r.id, r.head into the_record, new_head;
  if not found then
    return {{.schema}}.append_full(append.record_key, append.event_type, append.payload, append.tenant, append.version,
      append.headers, append.idempotency_key, append.event_id, append.occurred_at, append.expected_seq);
  end if;

  at := clock_timestamp(); -- under the lock, so that created_at grows with seq
  insert into {{.schema}}.events (record_id, seq, id, type, version, payload, headers, occurred_at, created_at)
    values (the_record, new_head, this_id, append.event_type, coalesce(append.version, 1), append.payload,
            coalesce(append.headers, '{}'), coalesce(append.occurred_at, at), at)
    on conflict on constraint events_id do nothing; -- waits for another transaction that inserts the same id
  if not found then
    raise exception 'event id % exists', this_id using errcode = 'KL002';
  end if;

  -- Not "on conflict do update … where": that locks the row even where the condition is false.
  insert into {{.schema}}.mailboxes (record_id, due_at) values (the_record, at) on conflict do nothing;
  if not found then
    perform {{.schema}}.rouse(the_record, at);
  elsif (case when current_setting('keyline.wake', true) = 'off' then false -- as wake has it, which is seldom called so
         else not pg_try_advisory_xact_lock_shared({{.schema}}.arm_key()) end) then
    perform {{.schema}}.wake(the_record::text);
  end if;
  return (this_id, new_head, false);
end
$$;
