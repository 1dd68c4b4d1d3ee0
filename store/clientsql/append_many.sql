select a.event_id::text, a.seq, a.duplicate from {{.schema}}.append_many($1::text::jsonb) a
