-- What failed since $1, and whether that was the end of it.
select f.at, c.name, r.record_key, f.seq, e.type, f.attempt, f.error_message,
  exists (select from keyline.dead_letters d
          where d.record_id = f.record_id and d.seq = f.seq and d.consumer_id = f.consumer_id and d.attempt = f.attempt)
from keyline.failures f
join keyline.consumers c on c.id = f.consumer_id
join keyline.records r on r.id = f.record_id
join keyline.events e on e.record_id = f.record_id and e.seq = f.seq
where f.at > $1
order by f.at
