-- How the types given stand: known, with the same schema, with the same internal flag, claimed by an in-process publisher.
select i.type, t.type is not null, t.schema is not distinct from i.schema, coalesce(t.internal, false) = i.internal, i.type = any (m.in_process_types)
from jsonb_to_recordset($1::text::jsonb) as i(type text, version integer, schema jsonb, internal boolean)
cross join {{.schema}}.meta m
left join {{.schema}}.event_types t on t.type = i.type and t.version = i.version
