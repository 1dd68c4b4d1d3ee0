begin isolation level read committed;
select {{.schema}}.hold(%d, %d, %d);
savepoint keyline_handler
