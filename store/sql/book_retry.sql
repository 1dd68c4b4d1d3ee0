-- The fence of a dead letter's retry.
with moved as (
  update {{.schema}}.dead_letters d set attempt = d.attempt
  where d.id = $1 and d.attempt = $2 and coalesce(d.status, '') = 'retrying' -- not a partial index's condition
  returning d.id
)
select {{.schema}}.booked((select count(*) from moved))
