-- Appends several events in one call. Records are locked in the order of their
-- names, so that two calls over the same records cannot deadlock: an event without
-- a usable key has the name that append will give it. Results come in input order,
-- and events of one record keep their order.
create function {{.schema}}.append_many(events jsonb) returns setof {{.schema}}.appended
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  item record;
  results {{.schema}}.appended[];
begin
  if events is null or jsonb_typeof(events) <> 'array' then
    raise exception 'events must be an array' using errcode = 'KL003';
  end if;
  if exists (select from jsonb_array_elements(events) e where jsonb_typeof(e) <> 'object') then
    raise exception 'events must be an array of objects' using errcode = 'KL003';
  end if;
  if exists (
    select from jsonb_array_elements(events) e, jsonb_object_keys(e) k
    where k not in ('record_key', 'event_type', 'payload', 'tenant', 'version', 'headers', 'idempotency_key',
                    'event_id', 'occurred_at', 'expected_seq')) then
    raise exception 'events have an unknown field' using errcode = 'KL003';
  end if;
  if exists (
    select from jsonb_array_elements(events) e, jsonb_each(e) f
    where f.key not in ('payload', 'headers') and jsonb_typeof(f.value) in ('object', 'array')) then
    raise exception 'events have an object or array where a text or number belongs' using errcode = 'KL003';
  end if;
  results := array_fill(null::{{.schema}}.appended, array[jsonb_array_length(events)]);
  for item in
    select e.value as event, e.ordinality as place
    from jsonb_array_elements(events) with ordinality e
    order by coalesce(e.value ->> 'tenant', '') collate "C",
      case when {{.schema}}.usable_key(e.value ->> 'record_key') then e.value ->> 'record_key'
        else coalesce((e.value ->> 'event_id')::uuid, {{.schema}}.fallback_id(coalesce(e.value ->> 'tenant', ''), e.value ->> 'idempotency_key'))::text
      end collate "C",
      e.ordinality
  loop
    results[item.place] := {{.schema}}.append(
      record_key => item.event ->> 'record_key',
      event_type => item.event ->> 'event_type',
      payload => item.event -> 'payload',
      tenant => item.event ->> 'tenant',
      version => (item.event ->> 'version')::integer,
      headers => nullif(item.event -> 'headers', 'null'),
      idempotency_key => item.event ->> 'idempotency_key',
      event_id => (item.event ->> 'event_id')::uuid,
      occurred_at => (item.event ->> 'occurred_at')::timestamptz,
      expected_seq => (item.event ->> 'expected_seq')::bigint);
  end loop;
  return query select u.event_id, u.seq, u.duplicate
    from unnest(results) with ordinality as u(event_id, seq, duplicate, place) order by u.place;
end
$$;
