select current_setting('autovacuum')::boolean, current_setting('track_counts')::boolean,
  array(select c.relname::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where n.nspname = $1::text and c.relkind = 'r'
          and exists (select from pg_options_to_table(c.reloptions) o where o.option_name = 'autovacuum_enabled' and not o.option_value::boolean)
        order by 1)
