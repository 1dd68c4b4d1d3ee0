-- Keyline's schema, version 2: what may have run before is remembered across claims, and an attempt that was
-- written ahead is given back by the claim that wrote it alone; what is looked up by key is, whatever a session has planned on empty tables; of a lost worker
-- the sessions in this database alone are ended; after a failover nothing is written that a worker has from before. The pieces lie in v2/.
{{ template "v2/tables.sql" . }}
{{ template "v2/timeline.sql" . }}
{{ template "v2/flush.sql" . }}
{{ template "v2/flush_v1.sql" . }}
{{ template "v2/flush_extras.sql" . }}
{{ template "v2/forgive_started.sql" . }}
{{ template "v2/hand_back_orphans.sql" . }}
{{ template "v2/mark_lost.sql" . }}
{{ template "v2/recover.sql" . }}
{{ template "v2/append_full.sql" . }}
{{ template "v2/append.sql" . }}
{{ template "v2/command.sql" . }}
{{ template "v2/claim.sql" . }}
{{ template "v2/load_record.sql" . }}
{{ template "v2/hold.sql" . }}
{{ template "v2/sweep.sql" . }}
{{ template "v2/health.sql" . }}
{{ template "v2/prune.sql" . }}
update {{.schema}}.meta set oldest_binary = 1;
---- create above / drop below ----
lock table {{.schema}}.dead_letters, {{.schema}}.checkpoints in access exclusive mode;
drop function {{.schema}}.flush(bigint, bigint, smallint, bigint, bigint[], bigint[], bigint[], bigint[], smallint[], timestamptz[], boolean[], jsonb,
  bigint[], integer[], bigint[], text[], integer[], integer[], integer[], timestamptz[], timestamptz[], text[], bigint[], bigint[], integer[], jsonb, jsonb);
drop function {{.schema}}.flush, {{.schema}}.flush_leave, {{.schema}}.flush_extras;
{{ template "v1/flush.sql" . }}
drop function {{.schema}}.mark_lost, {{.schema}}.mark_lost_row, {{.schema}}.forgive_started, {{.schema}}.recover, {{.schema}}.hand_back_orphans;
{{ template "v1/recover.sql" . }}
{{ template "v2/append_v1.sql" . }}
drop function {{.schema}}.append_full, {{.schema}}.rouse;
{{ template "v2/timeline_v1.sql" . }}
drop function {{.schema}}.command, {{.schema}}.lock_record, {{.schema}}.make_due;
{{ template "v1/command.sql" . }}
drop function {{.schema}}.claim, {{.schema}}.load_record, {{.schema}}.hold, {{.schema}}.booked;
{{ template "v1/claim.sql" . }}
{{ template "v1/hold.sql" . }}
drop sequence {{.schema}}.claim_front;
drop function {{.schema}}.sweep, {{.schema}}.sweep_wake, {{.schema}}.sweep_backfill, {{.schema}}.sweep_clear;
{{ template "v1/sweep.sql" . }}
{{ template "v2/health_v1.sql" . }}
{{ template "v2/prune_v1.sql" . }}
alter table {{.schema}}.checkpoints drop column redeliver_to, drop column started_by;
alter table {{.schema}}.dead_letters drop column started_by;
update {{.schema}}.meta set oldest_binary = 1;
