-- Moves the beat, and says which consumers the worker hosts by the registry that it has read last. Answers whether the
-- worker is live, the database's time, and the schema's version with the oldest binary that it serves. The instance is
-- asked for as well as the number: in a database that was restored beneath its workers another process may have been
-- given the same one. A worker that joined before a failover is not live: what it holds may be lost, so it has to join again.
with renewed as (
  update {{.schema}}.workers w set beat = w.beat + 1, beat_at = clock_timestamp(), state = $2::text::jsonb,
    consumers = coalesce($4::text[], w.consumers)
  where w.id = $1 and w.instance = $3 and w.status = 'live' and w.timeline = {{.schema}}.timeline() returning 1
)
select exists (select from renewed), clock_timestamp(), v.version, m.oldest_binary
from {{.schema}}.schema_version v, {{.schema}}.meta m
