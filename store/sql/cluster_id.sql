select cluster_id from {{.schema}}.meta
