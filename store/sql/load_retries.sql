-- "coalesce": two partial indexes have the condition, and one of them is not by record.
select d.id, d.record_id, d.consumer_id, d.seq, d.attempt, d.granted, d.crashes, d.started, d.due_at, d.first_failed_at, d.error_code
from {{.schema}}.dead_letters d
where coalesce(d.status, '') = 'retrying' and d.record_id = any ($1::bigint[])
