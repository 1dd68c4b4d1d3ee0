-- Frees a worker's claims that nothing in its process holds (a claim whose
-- answer was lost). Hand-backs charge nothing. A claim from a time to come is from before the clock was set back.
--
-- Thousands are held: they are told apart by grouping, which no plan makes a comparison of each with each.
-- As in claim, rows are then found by their places.
create or replace function {{.schema}}.hand_back_orphans(worker bigint, held_records bigint[], held_tokens bigint[], before timestamptz) returns integer
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
#variable_conflict use_column
declare
  boxes tid[];
  lost bigint[];
  ids bigint[];
  at timestamptz := clock_timestamp();
begin
  select array_agg(o.box), array_agg(o.token) into boxes, lost
  from (
    select x.token, (array_agg(x.box))[1] as box
    from (
      select m.record_id, m.token, m.ctid as box from {{.schema}}.mailboxes m
      where m.claimed_by = worker and (m.claimed_at < before or m.claimed_at > clock_timestamp() + interval '1 second')
      union all
      select h.id, h.token, null from unnest(held_records, held_tokens) as h(id, token)
    ) x
    group by x.record_id, x.token having bool_and(x.box is not null)
  ) o;
  if boxes is null then
    return 0;
  end if;
  select array_agg(m.ctid), array_agg(m.record_id) into boxes, ids
  from (
    select m.ctid, m.record_id from {{.schema}}.mailboxes m
    where m.ctid = any (boxes) and m.claimed_by is not distinct from worker and m.token = any (lost)
    for no key update skip locked
  ) m;
  if boxes is null then
    return 0;
  end if;
  perform {{.schema}}.forgive_started(ids);
  update {{.schema}}.mailboxes m
  set claimed_by = null, claimed_at = null, token = nextval('{{.schema}}.tokens'), due_at = at, unclean = true
  where m.ctid = any (boxes);
  perform {{.schema}}.wake('more');
  return cardinality(ids);
end
$$;
