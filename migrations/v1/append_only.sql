-- Events are facts: nobody changes them. Pruning goes through the one function
-- that sets keyline.pruning for its own transaction.
create function {{.schema}}.refuse_event_change() returns trigger language plpgsql as $$
begin
  if tg_op = 'DELETE' and current_setting('keyline.pruning', true) = pg_current_xact_id()::text then
    return old;
  end if;
  raise exception 'events are append-only: % refused', tg_op using errcode = 'KL010';
end
$$;
create trigger append_only before update or delete on {{.schema}}.events
  for each row execute function {{.schema}}.refuse_event_change();
create trigger append_only_truncate before truncate on {{.schema}}.events
  for each statement execute function {{.schema}}.refuse_event_change();
