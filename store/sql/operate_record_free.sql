-- Whether nobody has the record's row: an appender has it from its append to the end of its transaction.
select exists (select from (select from {{.schema}}.records r where r.id = $1 for share skip locked) free)
