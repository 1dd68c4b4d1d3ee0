-- Tokens without their hashes, the newest first, those below an id: of all tenants, or of one.
select t.id, t.name, t.role, t.tenant, t.created_at, t.created_by, t.expires_at, t.revoked_at, coalesce(t.revoked_by, ''), t.last_used_at,
  t.revoked_at is null and (t.expires_at is null or t.expires_at > clock_timestamp())
from {{.schema}}.api_tokens t
where ($1::text is null or t.tenant = $1) and ($2::bigint is null or t.id < $2)
order by t.id desc
limit $3
