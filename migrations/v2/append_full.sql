-- An append with all that it may ask for and be refused for. It runs within append, with its rights and its search_path.
--
-- Everything is looked up by key, whatever the statistics say. A session plans once, perhaps while the
-- tables are empty, as mailboxes is whenever there is nothing to do; a plan that reads all of a small table would then
-- read all of a large one, and many appends in one transaction would take time by the square of their number.
create function {{.schema}}.append_full(
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
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
#variable_conflict use_column
declare
  this_tenant text := coalesce(append_full.tenant, '');
  this_key text := append_full.record_key;
  this_version integer := coalesce(append_full.version, 1);
  this_headers jsonb := coalesce(append_full.headers, '{}');
  this_payload jsonb := coalesce(append_full.payload, 'null');
  this_id uuid := append_full.event_id;
  must_register boolean;
  payload_limit integer;
  in_process boolean;
  the_record bigint;
  new_head bigint;
  found_event record;
  at timestamptz;
begin
  if append_full.event_type is null or btrim(append_full.event_type, E' \t\n\r\f\x0B') = '' or octet_length(append_full.event_type) > 255 then
    raise exception 'event type must be 1 to 255 bytes and not blank' using errcode = 'KL003';
  elsif this_version < 1 then
    raise exception 'event version must be at least 1' using errcode = 'KL003';
  elsif octet_length(this_tenant) > 512 then
    raise exception 'tenant is over 512 bytes' using errcode = 'KL003';
  elsif append_full.expected_seq < 0 then
    raise exception 'expected seq is negative' using errcode = 'KL003';
  elsif octet_length(append_full.idempotency_key) not between 1 and 512 then
    raise exception 'idempotency key must be 1 to 512 bytes' using errcode = 'KL003';
  elsif append_full.occurred_at not between '0001-01-01 00:00:00+00' and '9999-12-31 23:59:59.999999+00' then
    -- RFC 3339 cannot write it, and so neither can JSON in most languages: nobody could list the record.
    raise exception 'occurred_at is not between the years 1 and 9999' using errcode = 'KL003';
  elsif this_headers <> '{}' then
    if jsonb_typeof(this_headers) <> 'object'
       or exists (select from jsonb_each(this_headers) h where jsonb_typeof(h.value) <> 'string') then
      raise exception 'headers must be an object of strings' using errcode = 'KL003';
    elsif octet_length(this_headers::text) > 65536 then
      raise exception 'headers are over 64 KiB' using errcode = 'KL003';
    end if;
    -- Only an append says this; an event that was made from another one may carry its headers.
    this_headers := this_headers - 'keyline_fallback_key';
  end if;

  select m.registry_strict, m.payload_limit, append_full.event_type = any (m.in_process_types)
    into must_register, payload_limit, in_process from {{.schema}}.meta m;
  if in_process then
    raise exception 'event type % is published in process', append_full.event_type using errcode = 'KL007';
  end if;
  if must_register then -- apart: a condition with a query in it is dear even where the query is not run
    perform from {{.schema}}.event_types t where t.type = append_full.event_type and t.version = this_version;
    if not found then
      raise exception 'event type % version % is not registered', append_full.event_type, this_version using errcode = 'KL004';
    end if;
  end if;
  -- The binary form says nothing about the text's length: 1e131071 takes ten bytes.
  if octet_length(this_payload::text) > payload_limit then
    raise exception 'payload is over % bytes', payload_limit using errcode = 'KL005';
  end if;

  if not {{.schema}}.usable_key(this_key) then
    if append_full.expected_seq is not null then
      raise exception 'expected seq needs a usable record key' using errcode = 'KL003';
    end if;
    this_id := coalesce(this_id, {{.schema}}.fallback_id(this_tenant, append_full.idempotency_key), {{.schema}}.uuidv7());
    this_key := this_id::text;
    this_headers := this_headers || '{"keyline_fallback_key": "true"}';
  end if;

  if append_full.idempotency_key is not null then
    -- A used key must change nothing, so look under the lock before counting.
    select r.id into the_record from {{.schema}}.records r
      where r.tenant = this_tenant and r.record_key = this_key for no key update;
    if found then
      select e.id, e.seq, e.type, e.version, e.payload into found_event from {{.schema}}.events e
        where e.record_id = the_record and e.idempotency_key = append_full.idempotency_key;
      if found then
        if found_event.type <> append_full.event_type or found_event.version <> this_version
           or found_event.payload <> this_payload or (append_full.event_id is not null and append_full.event_id <> found_event.id) then
          raise exception 'idempotency key % was used for another event', append_full.idempotency_key using errcode = 'KL002';
        end if;
        return (found_event.id, found_event.seq, true);
      end if;
      update {{.schema}}.records r set head = r.head + 1 where r.id = the_record returning r.head into new_head;
    end if;
  end if;
  if new_head is null then
    -- For a known record this costs no more than an update; it uses up an id.
    insert into {{.schema}}.records as r (tenant, record_key, head) values (this_tenant, this_key, 1)
      on conflict on constraint records_name do update set head = r.head + 1
      returning r.id, r.head into the_record, new_head;
    if append_full.idempotency_key is not null and new_head > 1 then
      -- Somebody else made the record in between, perhaps with this key.
      update {{.schema}}.records r set head = r.head - 1 where r.id = the_record;
      return {{.schema}}.append_full(append_full.record_key, append_full.event_type, append_full.payload, append_full.tenant, append_full.version,
        append_full.headers, append_full.idempotency_key, append_full.event_id, append_full.occurred_at, append_full.expected_seq);
    end if;
  end if;
  if append_full.expected_seq <> new_head - 1 then
    raise exception 'expected seq % of record %, found %', append_full.expected_seq, this_key, new_head - 1 using errcode = 'KL001';
  end if;

  at := clock_timestamp(); -- under the lock, so that created_at grows with seq
  this_id := coalesce(this_id, {{.schema}}.uuidv7());
  insert into {{.schema}}.events (record_id, seq, id, type, version, payload, headers, idempotency_key, occurred_at, created_at)
    values (the_record, new_head, this_id, append_full.event_type, this_version, this_payload, this_headers,
            append_full.idempotency_key, coalesce(append_full.occurred_at, at), at)
    on conflict on constraint events_id do nothing; -- waits for another transaction that inserts the same id
  if not found then
    raise exception 'event id % exists', this_id using errcode = 'KL002';
  end if;

  insert into {{.schema}}.mailboxes (record_id, due_at) values (the_record, at) on conflict do nothing;
  if found then
    perform {{.schema}}.wake(the_record::text);
  else
    perform {{.schema}}.rouse(the_record, at);
  end if;
  return (this_id, new_head, false);
end
$$;

-- Makes a record due whose mailbox is there, and wakes. The caller holds the record's row lock.
create function {{.schema}}.rouse(the_record bigint, at timestamptz) returns void
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
begin
  -- coalesce: "is null" would let the planner take the index of what is due for it.
  update {{.schema}}.mailboxes m set due_at = at, wants = null, wants_due_at = null
    where m.record_id = the_record and coalesce(m.claimed_by, 0) = 0 and (m.due_at > at or m.wants is not null);
  if not found then
    perform from {{.schema}}.mailboxes m where m.record_id = the_record and coalesce(m.claimed_by, 0) <> 0;
    if found then
      return; -- claimed: its holder will see the new head, no wake
    end if;
  end if;
  perform {{.schema}}.wake(the_record::text);
end
$$;

revoke all on function {{.schema}}.append_full(text, text, jsonb, text, integer, jsonb, text, uuid, timestamptz, bigint) from public;
revoke all on function {{.schema}}.rouse(bigint, timestamptz) from public;
