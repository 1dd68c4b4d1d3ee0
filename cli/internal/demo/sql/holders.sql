-- Who holds how many records now, the one with most of them first.
select w.id, w.pid, w.instance::text, count(*)
from keyline.mailboxes m join keyline.workers w on w.id = m.claimed_by
where w.status = 'live'
group by w.id order by count(*) desc
