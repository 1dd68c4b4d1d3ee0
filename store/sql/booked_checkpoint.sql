-- Waits for a transaction in doubt, which has this row locked.
select k.seq, k.state, k.attempt, k.granted, k.crashes, k.next_attempt_at
from {{.schema}}.checkpoints k where k.record_id = $1 and k.consumer_id = $2 for update
