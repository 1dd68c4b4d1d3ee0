-- Records that a worker holds.
select count(*) from keyline.mailboxes where claimed_by is not null
