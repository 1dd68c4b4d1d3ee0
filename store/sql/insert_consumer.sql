insert into {{.schema}}.consumers (name, previous_names, status, revision, types, versions, on_unsupported, start_kind, start_time,
  effect, effect_note, retry_delays_ms, retry_jitter, on_dead, scope, transactional, contract_only, internal, sweep)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)
returning id
