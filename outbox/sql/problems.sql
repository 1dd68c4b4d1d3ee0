-- What append would refuse, of the rows that wait{{if .Recent}} and of the last ones that came{{end}}: by kind, with one row's id.
with looked as (
  select {{.ID}}::text as id, {{.EventExpr}} as e, {{.KeyExpr}} as k from {{.Table}} as {{.Alias}} where {{.PendingWhere}}{{if .Recent}}
  union all
  (select {{.ID}}::text, {{.EventExpr}}, {{.KeyExpr}} from {{.Table}} as {{.Alias}} where not coalesce(({{.PendingWhere}}), false) order by {{.Created}} desc limit {{.Recent}}){{end}}
), judged as (
  select l.id, unnest(array[
    case when coalesce(btrim(l.e ->> 'event_type', E' \t\n\r\f\x0B'), '') = '' or octet_length(l.e ->> 'event_type') > 255
      then 'the type is blank or over 255 bytes' end,
    case when m.registry_strict and not exists (
      select from {{.Keyline}}.event_types t where t.type = l.e ->> 'event_type' and t.version = coalesce((l.e ->> 'version')::integer, 1))
      then 'type and version are not registered, and the registry is strict' end,
    case when l.e ->> 'event_type' = any (m.in_process_types) then 'the type is published in process' end,
    case when (l.e ->> 'version')::integer < 1 then 'the version is below 1' end,
    case when octet_length(l.e ->> 'tenant') > 512 then 'the tenant is over 512 bytes' end,
    case when octet_length((l.e -> 'payload')::text) > m.payload_limit then 'the payload is too large' end,
    case when l.e ->> 'occurred_at' in ('infinity', '-infinity') then 'the time of occurrence is infinite' end,
    case when jsonb_typeof(l.e -> 'headers') not in ('object', 'null')
        or octet_length((l.e -> 'headers')::text) > 65536
        or exists (select from jsonb_each(case when jsonb_typeof(l.e -> 'headers') = 'object' then l.e -> 'headers' else '{}' end) h
                   where jsonb_typeof(h.value) <> 'string')
      then 'the headers are no object of strings, or over 64 KiB' end,
    case when not {{.Keyline}}.usable_key(l.k) then '' end]) as problem
  from looked l cross join {{.Keyline}}.meta m
)
select problem, count(*), min(id) from judged where problem is not null group by problem order by problem;
