select
  (select coalesce(sum(head), 0)::bigint from keyline.records),
  (select count(*) from crm.delivered_log where mark = 'done'),
  (select count(*) from keyline.mailboxes),
  (select count(*) from keyline.checkpoints where state = 'backoff')
