-- Deletes the oldest failures from before a time, with the audit in the same transaction. By place: nobody updates one.
with gone as (
    delete from {{.schema}}.failures f
    where f.ctid = any (array(select o.ctid from {{.schema}}.failures o where o.at < $1::timestamptz order by o.at limit $2::integer)) returning 1),
  counted as materialized (select count(*) as n from gone)
select c.n, case when c.n > 0 then
  {{.schema}}.prune_noted(nullif($5::bigint, 0), $3::text, $4::text, 'failures from before ' || $1, jsonb_build_object('failures', c.n)) else $5 end
from counted c
