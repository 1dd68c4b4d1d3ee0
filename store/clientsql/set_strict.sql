update {{.schema}}.meta set registry_strict = $1::boolean where registry_strict <> $1::boolean
