select d.id, d.record_id, d.consumer_id, d.seq, d.attempt, d.granted, d.crashes, d.started, d.due_at, d.first_failed_at, d.error_code
from {{.schema}}.dead_letters d
where d.status = 'retrying' and d.record_id = any ($1::bigint[])
order by d.id
