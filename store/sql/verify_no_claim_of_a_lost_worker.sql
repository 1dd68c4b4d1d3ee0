-- Every claim is of a live worker, or of one that ended less than a lease ago: so long its handlers may keep it (see leave),
-- and so long others may take to recover it.
select m.record_id, format('claimed by worker %s, which is %s', m.claimed_by, coalesce(w.status, 'not registered'))
from {{.schema}}.mailboxes m
left join {{.schema}}.workers w on w.id = m.claimed_by
where m.record_id > $1::bigint and m.record_id <= $2::bigint and ($3::bigint[] is null or m.record_id = any ($3))
  and m.claimed_by is not null and w.status is distinct from 'live'
  and (w.id is null or w.ended_at + w.lease < clock_timestamp())
order by 1 limit 1000
