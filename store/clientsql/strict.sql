select registry_strict from {{.schema}}.meta
