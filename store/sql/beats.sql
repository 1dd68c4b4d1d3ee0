select id, beat, lease from {{.schema}}.workers where status = 'live'
