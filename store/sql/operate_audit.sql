-- The audit, the newest first, with what became of the commands in it. With a tenant: commands to its records,
-- and acts that say that they were about it. $6: without acts on an event of an internal type, or of one that is not known
-- any more, since the event has been pruned.
select a.id, a.at, a.actor, a.session_user_name, a.action, a.target, a.reason, a.detail, c.applied_at, c.done, coalesce(c.detail, '')
from {{.schema}}.audit a
left join {{.schema}}.commands c on c.id = (a.detail ->> 'command')::bigint
left join {{.schema}}.records r on r.id = c.record_id
where ($1::text is null or a.actor = $1) and ($2::text is null or a.action = $2) and ($3::bigint is null or a.id < $3)
  and ($5::text is null or r.tenant = $5 or a.detail ->> 'tenant' = $5)
  and (not $6::boolean or case
    when a.detail ? 'command' then (
      select not exists (select from {{.schema}}.event_types t where t.type = e.type and t.internal)
      from {{.schema}}.events e where e.record_id = c.record_id
        and e.seq = coalesce(nullif(c.seq, 0), (select d.seq from {{.schema}}.dead_letters d where d.id = c.dead_letter_id)))
    when a.detail ? 'event' then (
      select not exists (select from {{.schema}}.event_types t where t.type = e.type and t.internal)
      from {{.schema}}.events e where e.id = (a.detail ->> 'event')::uuid)
    else true end)
order by a.id desc
limit $4
