-- A record's events are 1 to head, without gaps.
select coalesce(r.id, e.record_id), format('head %s, but %s events from %s to %s', r.head, coalesce(e.n, 0), coalesce(e.first, 0), coalesce(e.last, 0))
from (select r.id, r.head from {{.schema}}.records r where r.id > $1::bigint and r.id <= $2::bigint and ($3::bigint[] is null or r.id = any ($3))) r
left join (
  select e.record_id, count(*) as n, min(e.seq) as first, max(e.seq) as last
  from {{.schema}}.events e where e.record_id > $1 and e.record_id <= $2 and ($3::bigint[] is null or e.record_id = any ($3))
  group by e.record_id) e on e.record_id = r.id
where r.head <> coalesce(e.last, 0) or r.head <> coalesce(e.n, 0) or (e.n > 0 and e.first <> 1)
order by 1 limit 1000
