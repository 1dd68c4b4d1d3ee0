-- Moves a transactional consumer's row, if it is where its holder believes it to be; otherwise the commit behind it must not be carried out.
with moved as (
  update {{.schema}}.checkpoints k
  set seq = $4, state = $5, attempt = $6, granted = $7, crashes = $8, next_attempt_at = $9, first_failed_at = $10, error_code = $11, live_from = $12,
    redeliver_to = nullif($13::bigint, -1)
  where k.record_id = $1 and k.consumer_id = $2 and k.seq = $3
  returning k.record_id
)
select {{.schema}}.booked((select count(*) from moved))
