-- As in v1, found by its key, whatever the statistics say.
-- A claim from before a failover counts as lost: what its holder has in hand may be about events that are lost, whose seqs others will get.
create or replace function {{.schema}}.hold(the_record bigint, worker bigint, the_token bigint) returns void
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off as $$
begin
  perform from {{.schema}}.mailboxes m
    where m.record_id = the_record and m.claimed_by is not distinct from worker -- not "=": its index would be read through
      and m.token = the_token for key share;
  if not found or exists (select from {{.schema}}.workers w where w.id = worker and w.timeline <> {{.schema}}.timeline()) then
    raise exception 'the claim of record % is lost', the_record using errcode = 'KL021';
  end if;
  -- The transaction is a handler's, which may be idle in it for as long as it likes.
  if current_setting('idle_in_transaction_session_timeout') <> '0' then
    perform set_config('idle_in_transaction_session_timeout', '0', true);
  end if;
  if current_setting('transaction_timeout', true) <> '0' then -- PostgreSQL 17
    perform set_config('transaction_timeout', '0', true);
  end if;
end
$$;
