select exists (select from {{.schema}}.api_tokens t where t.revoked_at is null and (t.expires_at is null or t.expires_at > clock_timestamp()))
