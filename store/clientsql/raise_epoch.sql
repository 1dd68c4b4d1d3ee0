update {{.schema}}.meta set registry_epoch = registry_epoch + 1
