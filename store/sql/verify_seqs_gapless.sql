-- A record's events are 1 to head without gaps, but for a beginning that was pruned.
select r.id, format('head %s, pruned up to %s, but %s events from %s to %s', r.head, r.pruned, coalesce(e.n, 0), coalesce(e.first, 0), coalesce(e.last, 0))
from (
  select r.id, r.head, coalesce(p.seq, 0) as pruned
  from {{.schema}}.records r left join {{.schema}}.pruned p on p.record_id = r.id
  where r.id > $1::bigint and r.id <= $2::bigint and ($3::bigint[] is null or r.id = any ($3))) r
left join (
  select e.record_id, count(*) as n, min(e.seq) as first, max(e.seq) as last
  from {{.schema}}.events e where e.record_id > $1 and e.record_id <= $2 and ($3::bigint[] is null or e.record_id = any ($3))
  group by e.record_id) e on e.record_id = r.id
where r.head <> coalesce(e.last, r.pruned) or r.head - r.pruned <> coalesce(e.n, 0) or e.first <> r.pruned + 1
order by 1 limit 1000
