-- The roles of an installation, for those who want them. They cannot log in: grant them to the roles that
-- programs and people log in with. May be run again at any time, and has to be after a migration: what is new is
-- granted then. Roles belong to the whole server: databases with a schema of one name share them.
do $$
declare
  name text;
begin
  foreach name in array array['{{.schema}}_producer', '{{.schema}}_reader', '{{.schema}}_worker', '{{.schema}}_operator', '{{.schema}}_admin'] loop
    begin
      if not exists (select from pg_roles r where r.rolname = name) then
        execute format('create role %I nologin', name);
      end if;
    exception when duplicate_object or unique_violation then
      null; -- somebody else was faster
    end;
  end loop;
end
$$;

-- From scratch: what was granted once and is not any more goes.
revoke all on all tables in schema {{.schema}} from {{.schema}}_producer, {{.schema}}_reader, {{.schema}}_worker, {{.schema}}_operator, {{.schema}}_admin;
revoke all on all sequences in schema {{.schema}} from {{.schema}}_producer, {{.schema}}_reader, {{.schema}}_worker, {{.schema}}_operator, {{.schema}}_admin;
revoke all on all functions in schema {{.schema}} from public, {{.schema}}_producer, {{.schema}}_reader, {{.schema}}_worker, {{.schema}}_operator, {{.schema}}_admin;
grant usage on schema {{.schema}} to {{.schema}}_producer, {{.schema}}_reader, {{.schema}}_worker, {{.schema}}_operator, {{.schema}}_admin;

-- A producer appends. The functions run with the owner's rights: it needs, and has, none on tables.
grant execute on function {{.schema}}.append, {{.schema}}.append_many to {{.schema}}_producer;

-- A reader sees all but payloads and headers.
grant select on all tables in schema {{.schema}} to {{.schema}}_reader, {{.schema}}_worker, {{.schema}}_operator;
revoke select on {{.schema}}.events from {{.schema}}_reader, {{.schema}}_operator;
grant select (record_id, seq, id, type, version, occurred_at, created_at) on {{.schema}}.events to {{.schema}}_reader, {{.schema}}_operator;
grant select on {{.schema}}.tokens to {{.schema}}_reader, {{.schema}}_operator;
revoke select on {{.schema}}.api_tokens from {{.schema}}_reader, {{.schema}}_worker, {{.schema}}_operator;
grant select (id, name, role, tenant, created_at, created_by, expires_at, revoked_at, revoked_by, last_used_at)
  on {{.schema}}.api_tokens to {{.schema}}_reader, {{.schema}}_operator;
grant execute on function {{.schema}}.traceparent, {{.schema}}.concerns, {{.schema}}.arm_key, {{.schema}}.seat_key, {{.schema}}.barrier_key, {{.schema}}.channel
  to {{.schema}}_reader, {{.schema}}_operator;

-- An operator also gives commands, recovers, prunes, pauses, and asks workers to drain. It writes neither events nor positions, and
-- adds to the audit without a say in when, and as which role.
grant execute on function {{.schema}}.command, {{.schema}}.lock_record, {{.schema}}.mark_lost, {{.schema}}.mark_lost_row,
  {{.schema}}.recover, {{.schema}}.wake, {{.schema}}.prune_events, {{.schema}}.prune_failures, {{.schema}}.prune_workers to {{.schema}}_operator;
grant insert (actor, action, target, reason, detail) on {{.schema}}.audit to {{.schema}}_operator, {{.schema}}_worker;
grant update (status, sweep, sweep_record, updated_at) on {{.schema}}.consumers to {{.schema}}_operator;
grant update (registry_epoch) on {{.schema}}.meta to {{.schema}}_operator;
grant update (drain_at) on {{.schema}}.workers to {{.schema}}_operator;

-- A worker delivers: it reads payloads, and writes positions. It appends, deletes and changes no events, gives
-- no commands and rewrites no audit. Where its handlers append, its login is a producer too.
grant execute on all functions in schema {{.schema}} to {{.schema}}_worker;
revoke execute on function {{.schema}}.append, {{.schema}}.append_many, {{.schema}}.append_full, {{.schema}}.rouse,
  {{.schema}}.command, {{.schema}}.lock_record, {{.schema}}.prune_events, {{.schema}}.prune_failures, {{.schema}}.prune_workers, {{.schema}}.prune_noted from {{.schema}}_worker;
grant usage on {{.schema}}.tokens to {{.schema}}_worker;
grant select, update on {{.schema}}.claim_front to {{.schema}}_worker;
grant update (cursor) on {{.schema}}.records to {{.schema}}_worker;
grant insert, update, delete on {{.schema}}.mailboxes, {{.schema}}.checkpoints, {{.schema}}.consumer_backlog to {{.schema}}_worker;
grant insert, delete on {{.schema}}.sweep_left to {{.schema}}_worker;
grant insert, update on {{.schema}}.dead_letters, {{.schema}}.consumer_health, {{.schema}}.workers, {{.schema}}.leases, {{.schema}}.consumers to {{.schema}}_worker;
grant insert on {{.schema}}.failures, {{.schema}}.skips to {{.schema}}_worker;
grant update (applied_at, done, detail) on {{.schema}}.commands to {{.schema}}_worker;
grant update (registry_epoch, ordering) on {{.schema}}.meta to {{.schema}}_worker;

-- An admin is an operator who also says who may use the admin API, and reads payloads: it is what that API logs in as.
grant {{.schema}}_operator to {{.schema}}_admin;
grant select on {{.schema}}.api_tokens, {{.schema}}.events to {{.schema}}_admin;
grant insert (name, role, tenant, hash, created_by, expires_at) on {{.schema}}.api_tokens to {{.schema}}_admin;
grant update (revoked_at, revoked_by, last_used_at) on {{.schema}}.api_tokens to {{.schema}}_admin;
