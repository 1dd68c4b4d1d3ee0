-- An event's payload, if its text has at most $2 bytes, with the audit in the same transaction.
with wanted as (
  select e.id, r.tenant, r.record_key, e.seq, e.type, e.version, e.payload::text as payload
  from {{.schema}}.events e join {{.schema}}.records r on r.id = e.record_id
  where e.id = $1::uuid
), noted as (
  insert into {{.schema}}.audit (actor, action, target, reason, detail)
  select $3::text, 'read_payload', $5::text, $4::text, jsonb_build_object('event', w.id, 'tenant', w.tenant) from wanted w
)
select octet_length(w.payload), case when octet_length(w.payload) <= $2::bigint then w.payload end from wanted w
