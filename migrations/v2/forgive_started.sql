-- Gives back attempts that were written ahead on records that change hands without a crash:
-- they go on counting as runs, but against no budget. Called before the claims end. What an earlier claim wrote ahead
-- stays: its worker was lost during it, and whoever claims next is to count that. Where it is not known which claim did, it is given back.
create or replace function {{.schema}}.forgive_started(record_ids bigint[]) returns void
language plpgsql as $$
begin
  update {{.schema}}.checkpoints k set state = 'ready', granted = least(k.granted + 1, k.attempt)
  from (select c.record_id, c.consumer_id from {{.schema}}.checkpoints c
        where c.record_id = any (record_ids) and c.state = 'started'
          and (c.started_by is null or c.started_by = (select m.token from {{.schema}}.mailboxes m where m.record_id = c.record_id))
        for update skip locked) s
  where k.record_id = s.record_id and k.consumer_id = s.consumer_id;
  update {{.schema}}.dead_letters d set started = false, granted = least(d.granted + 1, d.attempt)
  where d.id in (select l.id from {{.schema}}.dead_letters l
                 where l.record_id = any (record_ids) and l.status = 'retrying' and l.started
                   and (l.started_by is null or l.started_by = (select m.token from {{.schema}}.mailboxes m where m.record_id = l.record_id))
                 for update skip locked);
end
$$;
