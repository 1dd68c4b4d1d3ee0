-- Keyline's schema, version 2: what may have run before is remembered across claims, and an attempt that was
-- written ahead is given back by the claim that wrote it alone; append and command look nothing up but by key. The pieces lie in v2/.
{{ template "v2/tables.sql" . }}
{{ template "v2/flush.sql" . }}
{{ template "v2/flush_v1.sql" . }}
{{ template "v2/flush_extras.sql" . }}
{{ template "v2/forgive_started.sql" . }}
{{ template "v2/hand_back_orphans.sql" . }}
{{ template "v2/append.sql" . }}
{{ template "v2/command.sql" . }}
{{ template "v2/claim.sql" . }}
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
drop function {{.schema}}.command, {{.schema}}.lock_record, {{.schema}}.make_due;
{{ template "v1/command.sql" . }}
drop function {{.schema}}.claim;
{{ template "v1/claim.sql" . }}
drop sequence {{.schema}}.claim_front;
alter table {{.schema}}.checkpoints drop column redeliver_to, drop column started_by;
alter table {{.schema}}.dead_letters drop column started_by;
update {{.schema}}.meta set oldest_binary = 1;
