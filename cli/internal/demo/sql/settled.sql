select not exists (select from keyline.mailboxes)
