-- Whoever sleeps is to hear of it: what the change leaves to be done on records begins with it.
with raised as (update {{.schema}}.meta set registry_epoch = registry_epoch + 1 returning 1)
select {{.schema}}.wake('more') from raised
