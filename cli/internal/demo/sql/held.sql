-- The records that a worker holds.
select m.record_id, r.tenant, r.record_key
from keyline.mailboxes m join keyline.records r on r.id = m.record_id
where m.claimed_by = $1 order by m.record_id
