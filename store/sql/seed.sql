-- Writes $2 records with $3 events each, numbered from $1, exactly as append would.
with r as (
  insert into {{.schema}}.records (tenant, record_key, head)
  select '', $4::text || n, $3::bigint from generate_series($1::bigint, $1::bigint + $2::bigint - 1) n
  returning id
), e as (
  insert into {{.schema}}.events (record_id, seq, id, type, version, payload, headers, occurred_at, created_at)
  select r.id, seq, gen_random_uuid(), 'bench.event', 1, jsonb_build_object('n', seq, 'text', repeat('x', 64)), '{}', t, t
  from r, generate_series(1, $3::bigint) seq, clock_timestamp() t
)
insert into {{.schema}}.mailboxes (record_id, due_at) select id, clock_timestamp() from r
