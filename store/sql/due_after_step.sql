-- Makes immediate work due whose time a backward step of the clock has put into the future: what no
-- backoff and no dead letter's retry explains. One chunk: records above $1, at most $2.
-- Answers the last record that was looked at; null: there is none.
with later as (
  select m.record_id, m.due_at from {{.schema}}.mailboxes m
  where m.record_id > $1 and m.claimed_by is null and m.due_at > clock_timestamp() + interval '1 second' and m.due_at < 'infinity'
  order by m.record_id limit $2
), due as (
  update {{.schema}}.mailboxes m set due_at = clock_timestamp()
  where m.record_id in (
    select l.record_id from later l join {{.schema}}.mailboxes b on b.record_id = l.record_id and b.claimed_by is null and b.due_at = l.due_at
    where not exists (select from {{.schema}}.checkpoints c where c.record_id = l.record_id and c.next_attempt_at >= l.due_at)
      and not exists (select from {{.schema}}.dead_letters d where d.record_id = l.record_id and d.status = 'retrying' and d.due_at >= l.due_at)
    order by l.record_id for no key update of b skip locked)
  returning m.record_id
)
select (select max(l.record_id) from later l), (select count(*) from due), (select {{.schema}}.wake('more') from due limit 1) is null
