-- A record's events above seq $2, at most $3, payload-free, with the state of each delivery. Seqs have no gaps, but
-- what was pruned is gone: the page begins with the first that is left. The bounds are said of the view too,
-- which would work out all of the record's events otherwise.
with page as materialized (
  select e.seq as first from {{.schema}}.events e where e.record_id = $1::bigint and e.seq > $2::bigint order by e.seq limit 1
)
select e.seq, e.id, e.type, e.version, e.occurred_at, e.created_at, s.state,
  (select coalesce(jsonb_object_agg(d.consumer, d.state), '{}') from {{.schema}}.deliveries d
   join {{.schema}}.consumers c on c.id = d.consumer_id and not c.contract_only
   where d.record_id = e.record_id and d.seq = e.seq)
from {{.schema}}.events e
join {{.schema}}.event_status s on s.record_id = e.record_id and s.seq = e.seq
where e.record_id = $1::bigint and e.seq >= (select p.first from page p) and e.seq < (select p.first from page p) + $3::integer
  and s.record_id = $1::bigint and s.seq >= (select p.first from page p) and s.seq < (select p.first from page p) + $3::integer
order by e.seq
