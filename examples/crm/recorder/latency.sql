-- From an event's append to the first start of a handler, in milliseconds.
with first as (
  select l.tenant, l.record_key, l.seq, min(l.at) as at
  from crm.delivered_log l where l.mark = 'begin' group by l.consumer, l.tenant, l.record_key, l.seq
)
select coalesce(percentile_cont(0.5) within group (order by ms), 0), coalesce(percentile_cont(0.99) within group (order by ms), 0)
from (
  select extract(epoch from f.at - e.created_at)::double precision * 1000 as ms
  from first f
  join keyline.records r on r.tenant = f.tenant and r.record_key = f.record_key
  join keyline.events e on e.record_id = r.id and e.seq = f.seq
) l
