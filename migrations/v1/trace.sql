-- The trace context of an event's append, where it has one; null otherwise. With the owner's rights: it is for
-- roles that may read no headers, and gives nothing of them but ids.
create function {{.schema}}.traceparent(event uuid) returns text
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select substring(e.headers ->> 'traceparent' from '^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}')
  from {{.schema}}.events e where e.id = traceparent.event
$$;
