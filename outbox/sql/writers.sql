-- Roles that may insert, and could not any more once each insert appends.
select r.rolname from pg_roles r
where r.rolcanlogin and not r.rolsuper and has_table_privilege(r.oid, $1::oid, 'insert')
  and not (has_schema_privilege(r.oid, '{{.Keyline}}', 'usage')
    and has_function_privilege(r.oid, '{{.Keyline}}.append(text,text,jsonb,text,integer,jsonb,text,uuid,timestamptz,bigint)', 'execute'))
order by r.rolname limit 20;
