-- Reads one record that the worker has just claimed: what a load does in eight statements, in one, for an event that
-- a sleeping worker is called for by name (a seventh of the time from commit to handler at 500 events per second).
--
-- One row for each event above the base, up to max_events; one without an event where there is none. rare: it has
-- checkpoints, commands or retries, which a load has to read; told in the same snapshot as the registry's
-- epoch, so that a flush finds out about a sweep in between.
--
-- Not one with the claim: events may be large, and a worker that is frozen while it is sent them would
-- keep the mailbox locked, for which appenders wait.
create function {{.schema}}.load_record(worker bigint, only_record bigint, max_events integer)
returns table (record_id bigint, token bigint, crashes integer, unclean boolean, tenant text, record_key text, head bigint, base bigint, epoch bigint,
  seq bigint, id uuid, type text, version integer, payload jsonb, headers jsonb, occurred_at timestamptz, created_at timestamptz, rare boolean)
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
begin
  return query
    select m.record_id, m.token, m.crashes, m.unclean, r.tenant, r.record_key, r.head, b.base, (select registry_epoch from {{.schema}}.meta),
      e.seq, e.id, e.type, e.version, e.payload, e.headers, e.occurred_at, e.created_at,
      -- "exists" would drop the order, which is there for what load_checkpoints says.
      coalesce((select true from {{.schema}}.checkpoints k where k.record_id between only_record and only_record order by k.record_id, k.consumer_id limit 1),
        (select true from {{.schema}}.commands c where c.record_id between only_record and only_record and c.applied_at is null order by c.record_id limit 1),
        (select true from {{.schema}}.dead_letters d where d.record_id between only_record and only_record and d.status = 'retrying' order by d.record_id limit 1),
        false)
    from {{.schema}}.mailboxes m
    join {{.schema}}.records r on r.id = m.record_id
    cross join lateral (select greatest(r.cursor, m.cursor) as base) b
    left join lateral (
      select * from {{.schema}}.events e where e.record_id = r.id and e.seq > b.base order by e.seq limit max_events
    ) e on true
    where m.record_id = only_record and m.claimed_by is not distinct from worker; -- not "=": its index would be read through
end
$$;
