select m.registry_epoch, m.ordering,
  c.id, c.name, c.status, c.revision, c.types, c.versions, c.on_unsupported, c.start_kind, c.start_time, c.effect, c.effect_note,
  c.retry_delays_ms, c.retry_jitter, c.on_dead, c.scope, c.transactional, c.contract_only, c.internal, c.previous_names
from {{.schema}}.meta m
left join {{.schema}}.consumers c on true
order by c.id
