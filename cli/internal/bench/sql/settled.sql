-- What is due long after the end of the turn, such as what was put in backoff for it, is no work.
-- Each half has an index.
select not exists (select from keyline.mailboxes where claimed_by is not null)
  and not exists (select from keyline.mailboxes where claimed_by is null and due_at < clock_timestamp() + interval '1 hour')
