-- A start rule is not changed: it decided where the consumer began.
update {{.schema}}.consumers
set name = $2, previous_names = $3, revision = $4, types = $5, versions = $6, on_unsupported = $7,
  effect = $8, effect_note = $9, retry_delays_ms = $10, retry_jitter = $11, on_dead = $12, scope = $13, transactional = $14,
  contract_only = $15, internal = $16, sweep = coalesce(sweep, 'wake'),
  -- A backfill and a clearing end in a wake sweep; a wake sweep begins anew.
  sweep_record = case when coalesce(sweep, 'wake') = 'wake' then 0 else sweep_record end,
  updated_at = clock_timestamp()
where id = $1
