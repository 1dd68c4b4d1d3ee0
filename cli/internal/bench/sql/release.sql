-- Makes all records due, in their order, as if they had been appended to a moment ago, and says how far the log has
-- been written then. Workers hear of it as of an append.
with m as (
  insert into keyline.mailboxes (record_id, due_at)
  select r.id, now() - interval '1 microsecond' * (max(r.id) over () - r.id) from keyline.records r order by r.id
  returning 1
)
select (pg_current_wal_insert_lsn() - '0/0')::bigint from (select count(*) as n from m) as made, keyline.wake('more')
