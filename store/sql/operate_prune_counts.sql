-- What a prune would delete beside events.
select (select count(*) from {{.schema}}.failures f where f.at < $1::timestamptz),
  (select count(*) from {{.schema}}.workers w where w.status in ('left', 'lost') and w.ended_at < $1
     and not exists (select from {{.schema}}.mailboxes m where m.claimed_by = w.id))
