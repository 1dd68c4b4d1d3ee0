-- An event, payload-free, with the state of each delivery.
select r.tenant, r.record_key, e.seq, e.id, e.type, e.version, e.occurred_at, e.created_at, s.state,
  (select coalesce(jsonb_object_agg(d.consumer, d.state), '{}') from {{.schema}}.deliveries d
   join {{.schema}}.consumers c on c.id = d.consumer_id and not c.contract_only
   where d.record_id = e.record_id and d.seq = e.seq)
from {{.schema}}.events e
join {{.schema}}.records r on r.id = e.record_id
join {{.schema}}.event_status s on s.record_id = e.record_id and s.seq = e.seq
where e.id = $1
