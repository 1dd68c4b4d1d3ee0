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
  -- The lock has given the transaction an id, which tells what became of it where the reply to its commit is lost. As a notice, since
  -- drivers begin a transaction by a statement whose rows they drop. INFO goes to the client whatever client_min_messages says.
  raise info '%', pg_current_xact_id() using errcode = 'KL023';
  -- The transaction is a handler's, which may be idle in it for as long as it likes.
  if current_setting('idle_in_transaction_session_timeout') <> '0' then
    perform set_config('idle_in_transaction_session_timeout', '0', true);
  end if;
  if current_setting('transaction_timeout', true) <> '0' then -- PostgreSQL 17
    perform set_config('transaction_timeout', '0', true);
  end if;
end
$$;

-- Ends a HandleTx transaction whose delivery has no row where its holder believes it to be, so that the commit behind it is passed over.
create function {{.schema}}.booked(n bigint) returns void language plpgsql as $$
begin
  if n <> 1 then
    raise exception 'the row of the delivery is not where it was expected' using errcode = 'KL022';
  end if;
end
$$;
