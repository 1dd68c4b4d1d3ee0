-- The wake: notify only when somebody is asleep. A worker that sleeps holds the
-- exclusive lock, one that falls asleep waits for it, and either makes the try fail.
-- If it succeeds, the shared lock stays until commit, and whoever asks for the
-- exclusive lock meanwhile is granted it only after that, then looks for work.
-- NOTIFY itself is avoided because every commit with one queues behind a server-wide lock.
create function {{.schema}}.wake(payload text) returns void language plpgsql as $$
begin
  if current_setting('keyline.wake', true) = 'off' then
    return; -- two-phase commit forbids NOTIFY, and session-scoped locks would outlive the session
  end if;
  -- A wake for some consumers is always sent: the worker that is granted the lock
  -- next, and so looks for work, need not be a host of theirs.
  if payload not like 'wants:%' and pg_try_advisory_xact_lock_shared({{.schema}}.arm_key()) then
    return;
  end if;
  if pg_notification_queue_usage() > 0.5 then
    return; -- a full queue would fail the commit; the sleeper's poll finds the work
  end if;
  perform pg_notify({{.schema}}.channel(), case when octet_length(payload) < 8000 then payload else 'more' end);
end
$$;
