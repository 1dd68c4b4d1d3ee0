-- A token with its hash, and whether its use was noted more than a minute ago.
select t.id, t.name, t.role, t.tenant, t.created_at, t.created_by, t.expires_at, t.revoked_at, coalesce(t.revoked_by, ''), t.last_used_at,
  t.revoked_at is null and (t.expires_at is null or t.expires_at > clock_timestamp()),
  t.hash, t.last_used_at is null or t.last_used_at < clock_timestamp() - interval '1 minute'
from {{.schema}}.api_tokens t
where t.id = $1
