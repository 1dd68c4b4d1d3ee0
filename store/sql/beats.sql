select id, beat, lease, drain_at is not null from {{.schema}}.workers where status = 'live'
