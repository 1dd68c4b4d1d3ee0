select {{.schema}}.keep_timeline()
