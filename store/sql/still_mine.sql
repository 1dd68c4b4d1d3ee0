-- Whether the claim is held.
select exists (select from {{.schema}}.mailboxes m where m.record_id = $1 and m.claimed_by = $2 and m.token = $3)
