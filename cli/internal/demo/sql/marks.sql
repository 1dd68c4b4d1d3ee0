-- What handlers have done since mark $1.
select l.id, l.consumer, l.tenant, l.record_key, l.seq, l.worker, e.type
from crm.delivered_log l
join keyline.records r on r.tenant = l.tenant and r.record_key = l.record_key
join keyline.events e on e.record_id = r.id and e.seq = l.seq
where l.id > $1 and l.mark = 'done'
order by l.id
