-- Revokes a token, with the audit in the same transaction. $2: of this tenant alone, null: whosever it is.
with revoked as (
  update {{.schema}}.api_tokens t set revoked_at = clock_timestamp(), revoked_by = $3::text
  where t.id = $1::bigint and t.revoked_at is null and ($2::text is null or t.tenant = $2)
  returning t.id, t.name, t.tenant
), noted as (
  insert into {{.schema}}.audit (actor, action, target, reason, detail)
  select $3::text, 'revoke_token', 'token ' || r.name, $4::text, jsonb_build_object('token', r.id) ||
    case when r.tenant is null then '{}' else jsonb_build_object('tenant', r.tenant) end
  from revoked r
)
select exists (select from revoked)
