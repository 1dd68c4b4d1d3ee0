-- What workers of version 1 call: the same, without what they do not keep. What they write says that it is not known.
create or replace function {{.schema}}.flush(
  worker bigint, epoch bigint, lane smallint, batch bigint,
  record_ids bigint[], tokens bigint[], heads bigint[], cursors bigint[],
  dispositions smallint[], due_ats timestamptz[], clears boolean[],
  wanting jsonb,
  cp_record bigint[], cp_consumer integer[], cp_seq bigint[], cp_state text[],
  cp_attempt integer[], cp_granted integer[], cp_crashes integer[],
  cp_next timestamptz[], cp_first timestamptz[], cp_code text[], cp_live_from bigint[],
  del_record bigint[], del_consumer integer[],
  extras jsonb, counts jsonb,
  out moved boolean, out fenced integer[], out skipped integer[], out gone integer[],
  out looked integer[], out looked_heads bigint[], out waiting integer[]
)
language sql
begin atomic
  select f.moved, f.fenced, f.skipped, f.gone, f.looked, f.looked_heads, f.waiting
  from {{.schema}}.flush(worker, epoch, lane, batch, record_ids, tokens, heads, cursors, dispositions, due_ats, clears, wanting,
    cp_record, cp_consumer, cp_seq, cp_state, cp_attempt, cp_granted, cp_crashes, cp_next, cp_first, cp_code, cp_live_from, null,
    del_record, del_consumer, extras, counts) f;
end;
