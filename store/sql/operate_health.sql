select h.consumer, h.status, h.workers, h.last_seen_at, h.processing, h.completed, h.failed, h.skipped, h.died, h.retried,
  h.last_event_at, h.last_success_at, h.last_failure_at,
  coalesce(h.pending, 0), coalesce(h.pending_exact, false), coalesce(h.retrying, 0), coalesce(h.parked, 0), coalesce(h.unsupported, 0),
  coalesce(h.dead, 0), h.oldest_at, h.counted_at, coalesce(h.term, 0)
from {{.schema}}.health h
order by h.consumer
