-- Makes immediate work due whose time a backward step of the clock has put into the future: what no
-- backoff and no dead letter's retry explains. One chunk: records above $1, at most $2. Where nobody has seen the step
-- ($3), only if something else bears a time to come: a worker's beat, or the record's newest event.
-- Answers the last record that was looked at; null: there is none.
with later as materialized (
  select m.record_id, m.due_at from {{.schema}}.mailboxes m
  where m.record_id > $1 and coalesce(m.claimed_by, 0) = 0 -- "is null" would let the planner take the index of what is due
    and m.due_at > clock_timestamp() + interval '1 second' and m.due_at < 'infinity'
  order by m.record_id limit $2
), due as (
  update {{.schema}}.mailboxes m set due_at = clock_timestamp()
  where m.ctid = any (array(
    select b.place from later l
    cross join lateral (
      select b.ctid as place from {{.schema}}.mailboxes b
      where b.record_id = l.record_id and coalesce(b.claimed_by, 0) = 0 and b.due_at = l.due_at
      offset 0 for no key update skip locked
    ) b
    where not exists (select from {{.schema}}.checkpoints c
        where c.record_id between l.record_id and l.record_id and c.next_attempt_at >= l.due_at order by c.record_id, c.consumer_id offset 0)
      and not exists (select from {{.schema}}.dead_letters d
        where d.record_id between l.record_id and l.record_id and d.status = 'retrying' and d.due_at >= l.due_at order by d.record_id offset 0)
      and ($3 or exists (select from {{.schema}}.workers w where w.beat_at > clock_timestamp() + interval '1 second')
        or (select e.created_at from {{.schema}}.events e where e.record_id between l.record_id and l.record_id
          order by e.record_id desc, e.seq desc limit 1) > clock_timestamp() + interval '1 second')))
    and coalesce(m.claimed_by, 0) = 0 and m.due_at > clock_timestamp()
  returning m.record_id
)
select (select max(l.record_id) from later l), (select count(*) from due), (select {{.schema}}.wake('more') from due limit 1) is null
