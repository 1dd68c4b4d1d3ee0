-- Where each consumer stands on a record. 'infinity' is no time.
select p.consumer, c.status, p.seq, p.state, p.attempt, nullif(p.next_attempt_at, 'infinity'), p.first_failed_at, coalesce(p.error_code, '')
from {{.schema}}.positions p join {{.schema}}.consumers c on c.id = p.consumer_id
where p.record_id = $1 and not c.contract_only
order by p.consumer
