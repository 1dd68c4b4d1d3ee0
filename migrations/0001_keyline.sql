-- Keyline's schema, version 1. Every object is schema-qualified; search_path is
-- never relied on. The pieces lie in v1/, one table group or function per file;
-- a released piece is never edited: a change is a new migration with new pieces.
{{ template "v1/tables.sql" . }}
{{ template "v1/constraints.sql" . }}
{{ template "v1/names.sql" . }}
{{ template "v1/uuidv7.sql" . }}
{{ template "v1/timeline.sql" . }}
{{ template "v1/append_only.sql" . }}
{{ template "v1/wake.sql" . }}
{{ template "v1/append.sql" . }}
{{ template "v1/append_many.sql" . }}
{{ template "v1/claim.sql" . }}
{{ template "v1/flush.sql" . }}
{{ template "v1/hold.sql" . }}
{{ template "v1/recover.sql" . }}
{{ template "v1/sweep.sql" . }}
{{ template "v1/command.sql" . }}
{{ template "v1/prune.sql" . }}
{{ template "v1/views.sql" . }}
{{ template "v1/health.sql" . }}
{{ template "v1/trace.sql" . }}
---- create above / drop below ----
do $$
begin
  -- Everything but the version table, which the migrator still needs.
  execute (select coalesce(string_agg(format('drop view if exists %I.%I cascade;', schemaname, viewname), ' '), '') from pg_views where schemaname = '{{.schema}}');
  execute (select coalesce(string_agg(format('drop table if exists %I.%I cascade;', schemaname, tablename), ' '), '') from pg_tables where schemaname = '{{.schema}}' and tablename <> 'schema_version');
  execute (select coalesce(string_agg(format('drop function if exists %s cascade;', p.oid::regprocedure), ' '), '') from pg_proc p where p.pronamespace = '{{.schema}}'::regnamespace);
  execute (select coalesce(string_agg(format('drop sequence if exists %I.%I cascade;', schemaname, sequencename), ' '), '') from pg_sequences where schemaname = '{{.schema}}');
  execute (select coalesce(string_agg(format('drop type if exists %I.%I cascade;', n.nspname, t.typname), ' '), '') from pg_type t join pg_namespace n on n.oid = t.typnamespace
           where n.nspname = '{{.schema}}' and t.typtype = 'c' and not exists (select 1 from pg_class c where c.oid = t.typrelid and c.relkind <> 'c'));
end
$$;
