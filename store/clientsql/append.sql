select a.event_id::text, a.seq, a.duplicate
from {{.schema}}.append(
  record_key => $1::text, event_type => $2::text, payload => $3::text::jsonb, tenant => $4::text, version => $5::integer,
  headers => $6::text::jsonb, idempotency_key => $7::text, event_id => $8::text::uuid, occurred_at => $9::text::timestamptz,
  expected_seq => $10::bigint) a
