-- How many microseconds until the next unclaimed mailbox is due that a host of $1 could claim.
select (extract(epoch from least(
    (select m.due_at from {{.schema}}.mailboxes m
     where m.claimed_by is null and m.due_at < 'infinity' order by m.due_at limit 1),
    (select m.wants_due_at from {{.schema}}.mailboxes m
     where m.claimed_by is null and m.wants is not null and m.wants && $1::integer[] order by m.wants_due_at limit 1)
  ) - clock_timestamp()) * 1000000)::bigint
