-- When each delivery in backoff runs again.
select r.record_key, k.next_attempt_at from keyline.checkpoints k join keyline.records r on r.id = k.record_id where k.state = 'backoff'
