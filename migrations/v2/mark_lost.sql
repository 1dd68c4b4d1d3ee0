-- Marks a worker lost, and ends its database sessions: a frozen one may hold the arming lock or a HandleTx open. That
-- with the caller's rights: fellow workers have one role, which the owner need not be a member of.
--
-- Its sessions in this database: a copy of one (from a template, or a dump) has the rows of workers that live, and
-- work elsewhere on the same server.
create or replace function {{.schema}}.mark_lost(worker bigint, seen_beat bigint) returns boolean
language plpgsql as $$
declare
  marked uuid := {{.schema}}.mark_lost_row(worker, seen_beat);
begin
  if marked is null then
    return false;
  end if;
  begin
    perform pg_terminate_backend(a.pid) from pg_stat_activity a
      where a.application_name = 'keyline ' || marked and a.datname = current_database() and a.pid <> pg_backend_pid()
        and not exists (select from {{.schema}}.workers w where w.instance = marked and w.status = 'live');
  exception when insufficient_privilege then
    -- It had another role. It is lost all the same; whoever runs workers under two roles lets each be a member of the other.
    raise warning 'the sessions of lost worker % could not be ended: %', worker, sqlerrm;
  end;
  return true;
end
$$;
