-- Makes a token, with the audit in the same transaction. $5: how many seconds it lasts, null: for ever.
with made as (
  insert into {{.schema}}.api_tokens (name, role, tenant, hash, created_by, expires_at)
  values ($1::text, $2::text, $3::text, $4::bytea, $6::text, clock_timestamp() + make_interval(secs => $5::double precision))
  returning id, name, role, tenant, created_at, created_by, expires_at, revoked_at, coalesce(revoked_by, ''), last_used_at
), noted as (
  insert into {{.schema}}.audit (actor, action, target, reason, detail)
  select $6::text, 'create_token', 'token ' || m.name, $7::text, jsonb_build_object('token', m.id, 'role', m.role, 'expires_at', m.expires_at) ||
    case when m.tenant is null then '{}' else jsonb_build_object('tenant', m.tenant) end
  from made m
)
select m.*, true from made m
