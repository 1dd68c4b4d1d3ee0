-- Holds a claim for a HandleTx transaction: a flush and a recovery pass this lock, a second
-- worker's claim skips the record until the transaction ends. (FOR SHARE would block the group commit.)
create function {{.schema}}.hold(the_record bigint, worker bigint, the_token bigint) returns void
language plpgsql as $$
begin
  perform from {{.schema}}.mailboxes m
    where m.record_id = the_record and m.claimed_by = worker and m.token = the_token for key share;
  if not found then
    raise exception 'the claim of record % is lost', the_record using errcode = 'KL021';
  end if;
end
$$;
