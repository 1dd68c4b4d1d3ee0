-- The audit, the newest first, with what became of the commands in it. With a tenant: commands to its records,
-- and acts that say that they were about it.
select a.id, a.at, a.actor, a.session_user_name, a.action, a.target, a.reason, a.detail, c.applied_at, c.done, coalesce(c.detail, '')
from {{.schema}}.audit a
left join {{.schema}}.commands c on c.id = (a.detail ->> 'command')::bigint
left join {{.schema}}.records r on r.id = c.record_id
where ($1::text is null or a.actor = $1) and ($2::text is null or a.action = $2) and ($3::bigint is null or a.id < $3)
  and ($5::text is null or r.tenant = $5 or a.detail ->> 'tenant' = $5)
order by a.id desc
limit $4
