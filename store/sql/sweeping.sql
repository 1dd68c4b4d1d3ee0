-- Whether a registry change has left something to be done.
select exists (select from {{.schema}}.consumers where sweep is not null)
