-- Who makes work locks the record first; what the next statement reads is then the latest.
select r.id from {{.schema}}.records r where r.id = $1 for no key update
