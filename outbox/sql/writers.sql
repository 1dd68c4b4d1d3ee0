-- Roles that may insert, and could not any more once each insert appends. Nobody has to log in as one: a function may be its,
-- or somebody may take it on. Whoever may insert into some columns alone may insert.
select r.rolname from pg_roles r
where r.rolname !~ '^pg_' and not r.rolsuper and has_any_column_privilege(r.oid, $1::oid, 'insert')
  and not (has_schema_privilege(r.oid, '{{.Keyline}}', 'usage')
    and has_function_privilege(r.oid, '{{.Keyline}}.append(text,text,jsonb,text,integer,jsonb,text,uuid,timestamptz,bigint)', 'execute'))
order by r.rolname limit 20;
