-- The one row of facts about this installation.
create table {{.schema}}.meta (
  one boolean primary key default true check (one),
  cluster_id uuid not null default gen_random_uuid(),
  -- Raised by every registry change, under the registry barrier.
  registry_epoch bigint not null default 1,
  ordering text not null default 'independent' check (ordering in ('independent', 'lockstep')),
  registry_strict boolean not null default false,
  payload_limit integer not null default 1048576 check (payload_limit > 0),
  -- The oldest binary, by the schema version that it carries, which this schema still serves: each migration says it.
  oldest_binary integer not null default 1 check (oldest_binary > 0)
);
insert into {{.schema}}.meta default values;

-- Every event updates its record's row twice, when it is counted and when it is settled: half of
-- each page is left free for that, so that records made together need no new index entries.
-- Names are compared byte by byte: faster, and no index breaks with a new version of a locale.
create table {{.schema}}.records (
  id bigint generated always as identity primary key,
  tenant text collate "C" not null,
  record_key text collate "C" not null,
  head bigint not null,
  cursor bigint not null default 0,
  constraint records_name unique (tenant, record_key)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

create table {{.schema}}.events (
  record_id bigint not null,
  seq bigint not null,
  id uuid not null,
  type text not null,
  version integer not null,
  payload jsonb not null,
  headers jsonb not null,
  idempotency_key text collate "C",
  occurred_at timestamptz not null,
  created_at timestamptz not null,
  constraint events_pkey primary key (record_id, seq),
  constraint events_id unique (id)
);
create unique index events_idempotency on {{.schema}}.events (record_id, idempotency_key) where idempotency_key is not null;

-- A row says: this record has work. due_at is when what its last holder hosted
-- is due ('infinity': none); wants and wants_due_at are about consumers that it did not host.
create table {{.schema}}.mailboxes (
  record_id bigint primary key,
  due_at timestamptz not null,
  claimed_by bigint,
  token bigint not null default 0,
  claimed_at timestamptz,
  cursor bigint not null default 0,
  crashes integer not null default 0,
  unclean boolean not null default false,
  wants integer[],
  wants_due_at timestamptz
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
create index mailboxes_due on {{.schema}}.mailboxes (due_at) where claimed_by is null;
create index mailboxes_wanting on {{.schema}}.mailboxes (wants_due_at) where claimed_by is null and wants is not null;
create index mailboxes_claimed on {{.schema}}.mailboxes (claimed_by) where claimed_by is not null;

-- Fencing tokens: one sequence, no cache, so that a later token is a higher one in every session.
create sequence {{.schema}}.tokens cache 1;

create table {{.schema}}.consumers (
  id integer generated always as identity primary key,
  name text not null constraint consumers_name unique,
  previous_names text[] not null default '{}',
  status text not null,
  revision integer not null,
  types text[] not null,
  versions integer[],
  on_unsupported text not null,
  start_kind text not null,
  start_time timestamptz,
  effect text not null,
  effect_note text not null default '',
  retry_delays_ms bigint[] not null,
  retry_jitter double precision not null,
  on_dead text not null,
  scope text not null,
  transactional boolean not null,
  contract_only boolean not null default false,
  internal boolean not null default false,
  -- A sweep in progress: what it is and the last record that it has passed (see sweep.sql).
  sweep text,
  sweep_record bigint not null default 0,
  created_at timestamptz not null default clock_timestamp(),
  updated_at timestamptz not null default clock_timestamp()
);

-- Records that a sweep found locked and has to come back to.
create table {{.schema}}.sweep_left (
  consumer_id integer not null,
  record_id bigint not null,
  primary key (consumer_id, record_id)
);

create table {{.schema}}.event_types (
  type text not null,
  version integer not null,
  schema jsonb,
  internal boolean not null default false,
  registered_at timestamptz not null default clock_timestamp(),
  primary key (type, version)
);

create table {{.schema}}.checkpoints (
  record_id bigint not null,
  consumer_id integer not null,
  seq bigint not null,
  state text not null,
  attempt integer not null default 0,
  granted integer not null default 0,
  crashes integer not null default 0,
  next_attempt_at timestamptz,
  first_failed_at timestamptz,
  error_code text,
  live_from bigint not null default 0,
  primary key (record_id, consumer_id)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);
create index checkpoints_consumer on {{.schema}}.checkpoints (consumer_id, record_id);
create index checkpoints_parked on {{.schema}}.checkpoints (consumer_id, record_id) where state = 'parked';

create table {{.schema}}.dead_letters (
  id bigint generated always as identity primary key,
  record_id bigint not null,
  seq bigint not null,
  consumer_id integer not null,
  event_id uuid not null,
  attempt integer not null,
  granted integer not null default 0,
  crashes integer not null default 0,
  started boolean not null default false,
  reason text not null,
  error_code text not null,
  error_message text not null default '',
  first_failed_at timestamptz not null,
  failed_at timestamptz not null,
  status text not null default 'open',
  due_at timestamptz,
  resolved_at timestamptz,
  resolved_by text,
  resolution text,
  constraint dead_letters_delivery unique (record_id, seq, consumer_id)
);
create index dead_letters_retrying on {{.schema}}.dead_letters (record_id) where status = 'retrying';
create index dead_letters_open on {{.schema}}.dead_letters (consumer_id, id) where status in ('open', 'retrying');

create table {{.schema}}.failures (
  record_id bigint not null,
  seq bigint not null,
  consumer_id integer not null,
  attempt integer not null,
  at timestamptz not null,
  error_code text not null,
  error_message text not null default '',
  stack text,
  worker_id bigint,
  primary key (record_id, seq, consumer_id, attempt)
);
create index failures_at on {{.schema}}.failures (at);

create table {{.schema}}.skips (
  record_id bigint not null,
  seq bigint not null,
  consumer_id integer not null,
  attempt integer not null,
  code text not null,
  reason text not null default '',
  at timestamptz not null,
  primary key (record_id, seq, consumer_id, attempt)
);

create table {{.schema}}.commands (
  id bigint generated always as identity primary key,
  record_id bigint not null,
  kind text not null,
  consumer_id integer,
  seq bigint not null default 0,
  dead_letter_id bigint,
  actor text not null,
  reason text not null default '',
  created_at timestamptz not null default clock_timestamp(),
  applied_at timestamptz,
  done boolean,
  detail text
);
create index commands_pending on {{.schema}}.commands (record_id) where applied_at is null;

create table {{.schema}}.workers (
  id bigint generated always as identity primary key,
  name text not null,
  -- One per process start: its database sessions carry it in application_name.
  instance uuid not null,
  host text not null,
  pid integer not null,
  status text not null default 'live',
  beat bigint not null default 0,
  lease interval not null,
  consumers text[] not null default '{}',
  state jsonb not null default '{}',
  -- When an operator asked it to finish what runs and leave.
  drain_at timestamptz,
  started_at timestamptz not null default clock_timestamp(),
  beat_at timestamptz not null default clock_timestamp(),
  ended_at timestamptz
) with (fillfactor = 50);
create index workers_status on {{.schema}}.workers (status);

create table {{.schema}}.leases (
  name text primary key,
  holder bigint,
  term bigint not null default 0,
  expires_at timestamptz not null
);

create table {{.schema}}.audit (
  id bigint generated always as identity primary key,
  at timestamptz not null default clock_timestamp(),
  actor text not null,
  session_user_name text not null default session_user,
  action text not null,
  target text not null,
  reason text not null default '',
  detail jsonb not null default '{}'
);

-- One row per consumer, worker and committer lane, so that group commits do not wait on each other.
create table {{.schema}}.consumer_health (
  consumer_id integer not null,
  worker_id bigint not null,
  lane smallint not null,
  last_batch bigint not null default 0,
  completed bigint not null default 0,
  failed bigint not null default 0,
  skipped bigint not null default 0,
  dead bigint not null default 0,
  retried bigint not null default 0,
  last_event_at timestamptz,
  last_success_at timestamptz,
  last_failure_at timestamptz,
  primary key (consumer_id, worker_id, lane)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 50, autovacuum_vacuum_scale_factor = 0);

-- Who may use the admin API. hash is SHA-256 of the token's secret part, which is 32 random bytes: nothing
-- shorter could be guessed from it. A name is given once, so that the audit says for ever whose act it was.
create table {{.schema}}.api_tokens (
  id bigint generated always as identity primary key,
  name text not null constraint api_tokens_name unique,
  role text not null,
  tenant text collate "C",
  hash bytea not null,
  created_at timestamptz not null default clock_timestamp(),
  created_by text not null,
  expires_at timestamptz,
  revoked_at timestamptz,
  revoked_by text,
  last_used_at timestamptz
);
