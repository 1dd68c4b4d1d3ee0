-- The consumers that events pass as ignored.
select array(select c.name from {{.schema}}.consumers c where c.status = 'disabled' order by c.name)
