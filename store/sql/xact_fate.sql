-- What became of a transaction: null where the server has given out no such id, as after a failover. An id that is
-- given out now is compared, as the snapshot's bounds say nothing of the newest ones while they run.
select case when $1::text::xid8 < pg_current_xact_id() then pg_xact_status($1::text::xid8) end
