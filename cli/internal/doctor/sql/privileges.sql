-- What a worker needs and this role lacks; whether it sees the sessions of others.
with needed (relation, privileges) as (
  values ('meta', 'SELECT,UPDATE'), ('records', 'SELECT,UPDATE'), ('events', 'SELECT'), ('mailboxes', 'SELECT,INSERT,UPDATE,DELETE'),
    ('tokens', 'USAGE'), ('claim_front', 'SELECT,UPDATE'), ('consumers', 'SELECT,INSERT,UPDATE'), ('sweep_left', 'SELECT,INSERT,DELETE'), ('event_types', 'SELECT'),
    ('checkpoints', 'SELECT,INSERT,UPDATE,DELETE'), ('dead_letters', 'SELECT,INSERT,UPDATE'), ('failures', 'SELECT,INSERT'),
    ('skips', 'SELECT,INSERT'), ('commands', 'SELECT,UPDATE'), ('workers', 'SELECT,INSERT,UPDATE'), ('audit', 'INSERT'),
    ('consumer_health', 'SELECT,INSERT,UPDATE'),
    ('leases', 'SELECT,INSERT,UPDATE'), ('consumer_backlog', 'SELECT,INSERT,UPDATE,DELETE'))
select current_user::text,
  array(
    select x.what from (
      select 'USAGE on the schema' as what, '' as name where not has_schema_privilege($1::text, 'USAGE')
      union all
      select p.privilege || ' on ' || n.relation, n.relation
      from needed n cross join unnest(string_to_array(n.privileges, ',')) as p(privilege)
      join pg_class c on c.relnamespace = $1::text::regnamespace and c.relname = n.relation
      where not case c.relkind when 'S' then has_sequence_privilege(c.oid, p.privilege)
        else case p.privilege when 'DELETE' then has_table_privilege(c.oid, 'DELETE') else has_any_column_privilege(c.oid, p.privilege) end end
      union all
      select 'EXECUTE on ' || f.proname, f.proname from pg_proc f
      where f.pronamespace = $1::text::regnamespace and f.proname not in ('append', 'append_many', 'append_full', 'rouse', 'command', 'lock_record') and f.proname not like 'prune%'
        and not has_function_privilege(f.oid, 'EXECUTE')) x
    order by x.name, x.what),
  pg_has_role('pg_read_all_stats', 'USAGE')
