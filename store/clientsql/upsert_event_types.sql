insert into {{.schema}}.event_types as t (type, version, schema, internal)
select i.type, i.version, i.schema, i.internal
from jsonb_to_recordset($1::text::jsonb) as i(type text, version integer, schema jsonb, internal boolean)
order by i.type collate "C", i.version
on conflict (type, version) do update set schema = excluded.schema, internal = excluded.internal
where t.schema is distinct from excluded.schema or t.internal <> excluded.internal
