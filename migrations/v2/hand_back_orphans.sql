-- Frees a worker's claims that nothing in its process holds (a claim whose
-- answer was lost). Hand-backs charge nothing. A claim from a time to come is from before the clock was set back.
create or replace function {{.schema}}.hand_back_orphans(worker bigint, held_records bigint[], held_tokens bigint[], before timestamptz) returns integer
language plpgsql as $$
#variable_conflict use_column
declare
  ids bigint[];
  at timestamptz := clock_timestamp();
begin
  ids := array(
    select m.record_id from {{.schema}}.mailboxes m
    where m.claimed_by = worker and (m.claimed_at < before or m.claimed_at > at + interval '1 second')
      and not exists (select from unnest(held_records, held_tokens) as h(id, token) where h.id = m.record_id and h.token = m.token)
    order by m.record_id
    for no key update skip locked);
  perform {{.schema}}.forgive_started(ids);
  update {{.schema}}.mailboxes m
  set claimed_by = null, claimed_at = null, token = nextval('{{.schema}}.tokens'), due_at = at, unclean = true
  from unnest(ids) as u(id)
  where m.record_id = u.id;
  if cardinality(ids) > 0 then
    perform {{.schema}}.wake('more');
  end if;
  return cardinality(ids);
end
$$;
