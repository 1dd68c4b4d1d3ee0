-- Whether the claim is held, and what became of a transaction: null where the server has no such one, as after a failover.
select exists (select from {{.schema}}.mailboxes m where m.record_id = $1 and m.claimed_by = $2 and m.token = $3),
  case when $4::text::xid8 < pg_snapshot_xmax(pg_current_snapshot()) then pg_xact_status($4::text::xid8) end
