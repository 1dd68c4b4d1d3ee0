-- A wake sweep passes every mailbox, whichever consumer it is kept with; other sweeps end in one.
update {{.schema}}.consumers set sweep = 'wake', sweep_record = 0
where id = (select min(c.id) from {{.schema}}.consumers c where c.sweep is null or c.sweep = 'wake')
