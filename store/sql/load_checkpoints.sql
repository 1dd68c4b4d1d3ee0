select k.record_id, k.consumer_id, k.seq, k.state, k.attempt, k.granted, k.crashes,
  k.next_attempt_at, k.first_failed_at, coalesce(k.error_code, ''), k.live_from, coalesce(k.redeliver_to, -1)
from {{.schema}}.checkpoints k
where k.record_id = any ($1::bigint[])
