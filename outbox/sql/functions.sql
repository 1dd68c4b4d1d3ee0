-- What an expression of the settings means is fixed here, once: the triggers, the backfill and the cut-over all call these.
-- They are bound when they are made: Postgres refuses to drop a column that they read, and follows one that is renamed, where
-- otherwise the next insert would fail.
create or replace function {{.Fn "key"}}(keyline_row {{.Table}}) returns text language sql stable
return (select {{.KeyExpr}} from (select {{.Row}}) as {{.Alias}});

create or replace function {{.Fn "pending"}}(keyline_row {{.Table}}) returns boolean language sql stable
return coalesce((select ({{.Pending}}
)::boolean from (select {{.Row}}) as {{.Alias}}), false);

-- A row as an event, named as keyline.append names its parts.
create or replace function {{.Fn "event"}}(keyline_row {{.Table}}) returns jsonb language sql stable
return (select {{.EventExpr}} from (select {{.Row}}) as {{.Alias}});

-- The key of the drainers' lock.
create or replace function {{.Fn "lock_key"}}() returns bigint language sql immutable
return pg_catalog.hashtextextended({{.LockName}}, 0);

-- Whether this session holds it.
create or replace function {{.Fn "holds"}}() returns boolean language sql volatile
return exists (
  select from pg_catalog.pg_locks l
  where l.locktype = 'advisory' and l.pid = pg_catalog.pg_backend_pid() and l.granted and l.objsubid = 1
    and l.database = (select d.oid from pg_catalog.pg_database d where d.datname = pg_catalog.current_database())
    and (l.classid::bigint << 32) | l.objid::bigint = {{.Fn "lock_key"}}());

-- What a drainer calls before it reads, on the connection that it ends rows with. The lock is shared: several drainers
-- go on beside each other, and Keyline waits for all of them. It lasts to the end of the transaction; with session => true
-- until pg_advisory_unlock_shared({{.Fn "lock_key"}}()) or the end of the connection. Refused once Keyline drains.
create or replace function {{.Fn "lock"}}(session boolean default false) returns void
language plpgsql set search_path = {{.Path}} as $keyline$
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    -- Its snapshot is from before the lock: it would read rows that Keyline has taken meanwhile.
    raise exception 'take the lock of % under read committed', {{.TableLiteral}} using errcode = '55000';
  end if;
  if not {{.Fn "holds"}}() and exists (
    select from pg_locks l
    where l.locktype = 'relation' and l.pid = pg_backend_pid() and l.relation = {{.TableLiteral}}::regclass
      and l.database = (select d.oid from pg_database d where d.datname = current_database())) then
    raise exception 'take the lock of % before you read it: Keyline may have taken meanwhile what was read', {{.TableLiteral}} using errcode = '55000';
  end if;
  if session then
    perform pg_advisory_lock_shared({{.Fn "lock_key"}}());
  else
    perform pg_advisory_xact_lock_shared({{.Fn "lock_key"}}());
  end if;
  if exists (select from pg_trigger t where t.tgrelid = {{.TableLiteral}}::regclass and t.tgname = '{{.TriggerForward}}') then
    if session then
      perform pg_advisory_unlock_shared({{.Fn "lock_key"}}());
    end if;
    raise exception 'Keyline drains % now', {{.TableLiteral}}
      using errcode = '55000', hint = 'Stop this drainer, or give the table back to it with `keyline outbox back`.';
  end if;
end
$keyline$;

-- Before each insert: a program that does not know the key column leaves it null.
create or replace function {{.Fn "fill"}}() returns trigger language plpgsql set search_path = {{.Path}} as $keyline$
begin
  if new.{{.KeyColumn}} is null then
    new.{{.KeyColumn}} := {{.Fn "key"}}(new);
  end if;
  return new;
end
$keyline$;

-- After each update, delete and truncate: rows are ended by the holder of the lock alone; and what Keyline has been
-- handed neither waits again nor changes.
create or replace function {{.Fn "guard"}}() returns trigger language plpgsql set search_path = {{.Path}} as $keyline$
declare
  ended boolean;
begin
  if tg_op = 'UPDATE' then
    ended := exists (
      select from old_rows o where {{.Fn "pending"}}(row(o.*)::{{.Table}}) and not exists (
        select from new_rows n where n.{{.ID}} = o.{{.ID}} and {{.Fn "pending"}}(row(n.*)::{{.Table}})));
  elsif tg_op = 'DELETE' then
    ended := exists (select from old_rows o where {{.Fn "pending"}}(row(o.*)::{{.Table}}));
  else
    ended := exists (select from {{.Table}} as {{.Alias}} where {{.PendingWhere}});
  end if;
  if ended and not {{.Fn "holds"}}() then
    raise exception 'waiting rows of % are ended by a drainer that holds its lock alone', {{.TableLiteral}}
      using errcode = '55000', hint = {{.LockHint}};
  end if;
  if tg_op = 'UPDATE' and exists (select from pg_trigger t where t.tgrelid = tg_relid and t.tgname = '{{.TriggerForward}}') then
    if exists (select from new_rows n where {{.Fn "pending"}}(row(n.*)::{{.Table}})) then
      raise exception 'Keyline drains % now: no row can be made to wait again', {{.TableLiteral}} using errcode = '55000';
    elsif exists (
      select from new_rows n left join old_rows o on o.{{.ID}} = n.{{.ID}}
      where n.{{.AtColumn}} is not null and {{.Fn "event"}}(row(n.*)::{{.Table}}) is distinct from {{.Fn "event"}}(row(o.*)::{{.Table}})) then
      raise exception 'Keyline has these events of % already: they do not change any more', {{.TableLiteral}} using errcode = '55000';
    end if;
  end if;
  return null;
end
$keyline$;

-- While Keyline drains. Before each insert: the row is done when it comes, since its event goes with it. A row that is
-- inserted as done already was never anybody's to deliver.
create or replace function {{.Fn "accept"}}() returns trigger language plpgsql set search_path = {{.Path}} as $keyline$
begin
  new.{{.AtColumn}} := null;
  if {{.Fn "pending"}}(new) then
    select {{.DoneExprs}} into {{.DoneTargets}} from (select new.*) as {{.Alias}};
    new.{{.AtColumn}} := clock_timestamp();
  end if;
  return new;
end
$keyline$;

-- After each insert, when constraints have had their say and "on conflict do nothing" has done nothing: in the writer's
-- transaction, and with the writer's rights.
create or replace function {{.Fn "forward"}}() returns trigger language plpgsql set search_path = {{.Path}} as $keyline$
declare
  e jsonb := {{.Fn "event"}}(new);
begin
  if {{.Fn "pending"}}(new) then
    raise exception 'row % of % waits although it was marked done', new.{{.ID}}, {{.TableLiteral}} using errcode = '55000';
  end if;
  if (select a.duplicate from {{.Append "e"}} as a) then
    raise exception 'row % of % was handed to Keyline before, and would be done without being delivered again', new.{{.ID}}, {{.TableLiteral}} using errcode = '55000';
  end if;
  return null;
end
$keyline$;

grant execute on function {{.Fn "key"}}, {{.Fn "pending"}}, {{.Fn "event"}}, {{.Fn "lock_key"}}, {{.Fn "holds"}}, {{.Fn "lock"}} to public;
comment on function {{.Fn "fill"}}() is {{.SettingsLiteral}};
