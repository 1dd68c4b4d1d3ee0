-- Impossible rows are refused by the database, whoever writes them. A constraint is parsed anew by
-- each statement that writes the table: on the three tables that every append writes there are only
-- those about columns that other statements set. What append alone sets (names, types, versions,
-- headers) it checks itself, with errors of their own, and verify looks at (decision 16).
alter table {{.schema}}.records
  add constraint records_cursor check (cursor >= 0 and cursor <= head);
alter table {{.schema}}.mailboxes
  add constraint mailboxes_claim check ((claimed_by is null) = (claimed_at is null)),
  add constraint mailboxes_wants check ((wants is null) = (wants_due_at is null) and (claimed_by is null or wants is null));
alter table {{.schema}}.consumers
  add constraint consumers_status check (status in ('active', 'paused', 'disabled', 'backfilling', 'retired')),
  add constraint consumers_on_unsupported check (on_unsupported in ('skip', 'dead_letter', 'wait')),
  add constraint consumers_start check (start_kind in ('now', 'beginning', 'at') and (start_kind = 'at') = (start_time is not null)),
  add constraint consumers_effect check (effect in ('database', 'external', 'none') and (effect <> 'external' or effect_note <> '')),
  add constraint consumers_on_dead check (on_dead in ('advance', 'park')),
  add constraint consumers_scope check (scope in ('one_for_one', 'all_for_one')),
  add constraint consumers_sweep check (sweep in ('backfill', 'wake', 'clear'));
alter table {{.schema}}.checkpoints
  add constraint checkpoints_state check (state in ('ready', 'backoff', 'parked', 'started')),
  add constraint checkpoints_due check ((state = 'backoff') = (next_attempt_at is not null)),
  add constraint checkpoints_counts check (seq >= 0 and attempt >= 0 and granted between 0 and attempt and crashes >= 0),
  add constraint checkpoints_started check (state <> 'started' or attempt >= 1);
alter table {{.schema}}.dead_letters
  add constraint dead_letters_reason check (reason in ('exhausted', 'permanent', 'unsupported_version', 'incompatible_payload', 'crash_budget')),
  add constraint dead_letters_status check (status in ('open', 'retrying', 'delivered', 'resolved')),
  add constraint dead_letters_due check ((status = 'retrying') = (due_at is not null)),
  add constraint dead_letters_end check ((status in ('delivered', 'resolved')) = (resolved_at is not null));
alter table {{.schema}}.commands
  add constraint commands_kind check (kind in ('retry', 'skip', 'retry_dead_letter', 'resolve_dead_letter')),
  add constraint commands_applied check ((applied_at is null) = (done is null)),
  add constraint commands_target check (kind not in ('retry_dead_letter', 'resolve_dead_letter') or dead_letter_id is not null);
alter table {{.schema}}.workers
  add constraint workers_status check (status in ('live', 'left', 'lost')),
  add constraint workers_ended check ((status = 'live') = (ended_at is null));
alter table {{.schema}}.api_tokens
  add constraint api_tokens_role check (role in ('viewer', 'operator', 'admin')),
  add constraint api_tokens_named check (octet_length(name) between 1 and 100 and octet_length(tenant) <= 512),
  add constraint api_tokens_hash check (octet_length(hash) = 32),
  add constraint api_tokens_revoked check ((revoked_at is null) = (revoked_by is null));
