-- In the order in which a flush locks them.
lock table {{.schema}}.dead_letters, {{.schema}}.checkpoints in access exclusive mode;

-- Events up to redeliver_to may have run before. Null: not known, as of rows that are there now, and of those
-- that workers of version 1 write; rows that sweeps and the like make begin with 0.
-- started_by is the token of the claim that wrote an attempt ahead; null: not known.
alter table {{.schema}}.checkpoints add column redeliver_to bigint, add column started_by bigint;
alter table {{.schema}}.checkpoints alter column redeliver_to set default 0;
-- Not valid: to validate it would read all rows while nobody else can.
alter table {{.schema}}.checkpoints add constraint checkpoints_redeliver_to check (redeliver_to >= 0) not valid;
alter table {{.schema}}.dead_letters add column started_by bigint;

-- The due time up to which claims have come, in microseconds since 1970. A sequence, since that is seen at once and
-- by all; it says only where to look first.
create sequence {{.schema}}.claim_front minvalue 0 start 0;
do $$
begin
  -- Where the roles were made for this schema: its workers' claims must not fail until they are made anew.
  if exists (select from pg_roles r where r.rolname = '{{.schema}}_worker' and has_sequence_privilege(r.oid, '{{.schema}}.tokens', 'usage')) then
    grant select, update on sequence {{.schema}}.claim_front to {{.schema}}_worker;
  end if;
end
$$;
