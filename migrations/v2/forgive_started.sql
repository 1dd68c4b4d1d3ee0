-- Gives back attempts that were written ahead on records that change hands without a crash:
-- they go on counting as runs, but against no budget. Called before the claims end. What an earlier claim wrote ahead
-- stays: its worker was lost during it, and whoever claims next is to count that. Where it is not known which claim did, it is given back.
--
-- Locks first, then updates by place, as in claim. A range and an order where one value is looked for: see load_checkpoints.
create or replace function {{.schema}}.forgive_started(record_ids bigint[]) returns void
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
declare
  places tid[];
begin
  places := array(
    select c.place from unnest(record_ids) as u(id)
    cross join lateral (
      select c.ctid as place from {{.schema}}.checkpoints c
      where c.record_id between u.id and u.id and c.state = 'started'
        and (c.started_by is null or c.started_by = (select m.token from {{.schema}}.mailboxes m where m.record_id = u.id))
      order by c.record_id, c.consumer_id offset 0 for update skip locked
    ) c);
  update {{.schema}}.checkpoints k set state = 'ready', granted = least(k.granted + 1, k.attempt) where k.ctid = any (places);
  places := array(
    select l.place from unnest(record_ids) as u(id)
    cross join lateral (
      select l.ctid as place from {{.schema}}.dead_letters l
      where l.record_id between u.id and u.id and l.status = 'retrying' and l.started
        and (l.started_by is null or l.started_by = (select m.token from {{.schema}}.mailboxes m where m.record_id = u.id))
      order by l.record_id offset 0 for update skip locked
    ) l);
  update {{.schema}}.dead_letters d set started = false, granted = least(d.granted + 1, d.attempt) where d.ctid = any (places);
end
$$;
