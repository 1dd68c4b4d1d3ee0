-- One row per activity, as it is now. version counts its changes and is the seq
-- of the event that tells of the last one.
create table crm.activities (
  organization text not null check (organization <> ''),
  id uuid not null,
  kind text not null check (kind in ('call', 'meeting', 'task', 'email')),
  subject text not null check (subject <> ''),
  -- What people write about a customer. It is in no event, log or trace.
  details text not null default '',
  account text not null default '',
  owner text check (owner <> ''),
  previous_owner text,
  status text not null default 'planned' check (status in ('planned', 'in_progress', 'completed', 'cancelled')),
  scheduled_at timestamptz,
  previous_scheduled_at timestamptz,
  minutes integer not null default 30 check (minutes between 1 and 1440),
  outcome text not null default '',
  version bigint not null default 1 check (version >= 1),
  created_at timestamptz not null default now(),
  created_by text not null,
  updated_at timestamptz not null default now(),
  updated_by text not null,
  primary key (organization, id)
);

create table crm.internal_notes (
  organization text not null,
  activity_id uuid not null,
  version bigint not null,
  body text not null check (body <> ''),
  author text not null,
  at timestamptz not null default now(),
  primary key (organization, activity_id, version),
  foreign key (organization, activity_id) references crm.activities (organization, id) on delete cascade
);

-- Who did what. One entry per event; it outlives its activity and is never changed.
create table crm.audit_log (
  event_id uuid primary key,
  organization text not null,
  activity_id uuid not null,
  version bigint not null,
  action text not null,
  actor text not null,
  correlation_id text not null,
  at timestamptz not null,
  unique (organization, activity_id, version)
);

create function crm.refuse_change() returns trigger language plpgsql as $$
begin
  raise exception '% is append-only', tg_table_name using errcode = 'insufficient_privilege';
end
$$;
create trigger audit_log_append_only before update or delete or truncate on crm.audit_log
  for each statement execute function crm.refuse_change();

-- What was answered to a request with an idempotency key, so that it can be
-- answered again. Rows older than any client's patience may be deleted.
create table crm.requests (
  organization text not null,
  idempotency_key text not null,
  operation text not null,
  activity_id uuid not null,
  fingerprint bytea not null,
  answer jsonb,
  at timestamptz not null default now(),
  primary key (organization, idempotency_key)
);

-- The consumers' tables.

create table crm.timeline (
  id bigint generated always as identity primary key,
  organization text not null,
  activity_id uuid not null,
  seq bigint not null,
  event_type text not null,
  actor text not null,
  summary text not null,
  at timestamptz not null,
  constraint timeline_event unique (organization, activity_id, seq)
);

create table crm.calendar (
  id bigint generated always as identity primary key,
  organization text not null,
  activity_id uuid not null,
  applied_seq bigint not null,
  owner text,
  subject text not null,
  starts_at timestamptz,
  ends_at timestamptz,
  -- Not on anybody's calendar any more: cancelled, completed, deleted.
  closed boolean not null default false,
  updated_at timestamptz not null,
  constraint calendar_activity unique (organization, activity_id)
);
create index calendar_day on crm.calendar (organization, starts_at) where not closed;

-- Each event is counted where this row was new, so a repeated one is not.
create table crm.dashboard_counted (
  organization text not null,
  activity_id uuid not null,
  seq bigint not null,
  primary key (organization, activity_id, seq)
);
create table crm.dashboard (
  organization text not null,
  day date not null,
  event_type text not null,
  events bigint not null,
  primary key (organization, day, event_type)
);
