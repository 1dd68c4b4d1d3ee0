update {{.schema}}.consumers
set status = 'active', sweep = 'wake', sweep_record = 0, updated_at = clock_timestamp()
where id = $1 and status = 'backfilling' and sweep = 'backfill'
  and not exists (select from {{.schema}}.sweep_left l where l.consumer_id = $1)
