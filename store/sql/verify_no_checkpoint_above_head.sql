-- No consumer is beyond its record's head.
select k.record_id, format('consumer %s is at %s, head %s', k.consumer_id, k.seq, r.head)
from {{.schema}}.checkpoints k
join {{.schema}}.records r on r.id = k.record_id
where k.record_id > $1::bigint and k.record_id <= $2::bigint and ($3::bigint[] is null or k.record_id = any ($3)) and k.seq > r.head
order by 1, 2 limit 1000
