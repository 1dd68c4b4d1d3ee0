-- The highest record id that anything speaks of.
select coalesce(greatest((select max(r.id) from {{.schema}}.records r), (select max(e.record_id) from {{.schema}}.events e),
  (select max(m.record_id) from {{.schema}}.mailboxes m), (select max(k.record_id) from {{.schema}}.checkpoints k)), 0)
