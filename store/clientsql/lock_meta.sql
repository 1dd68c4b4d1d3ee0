select from {{.schema}}.meta for update
