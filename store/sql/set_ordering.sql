update {{.schema}}.meta set ordering = $1
