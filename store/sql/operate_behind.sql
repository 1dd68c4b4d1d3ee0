-- The records above id $2 on which a consumer can be behind, in order, at most $3, and whether it is (with $4: of that
-- tenant alone). They have a mailbox, or a row of the consumer: any row where it does not participate or a sweep
-- of it is under way, else a parked one. That spares the rows that transactional consumers have on every record.
with consumer as materialized (
  select c.id, c.status = 'active' and c.sweep is null as settled from {{.schema}}.consumers c
  where c.id = $1::integer and c.status not in ('retired', 'disabled') and not c.contract_only
), candidates as materialized (
  select u.record_id from (
    (select m.record_id from {{.schema}}.mailboxes m
     where m.record_id > $2::bigint and exists (select from consumer) order by m.record_id limit $3::integer)
    union
    (select k.record_id from {{.schema}}.checkpoints k
     where (select c.settled from consumer c) and k.consumer_id = $1::integer and k.state = 'parked' and k.record_id > $2::bigint
     order by k.record_id limit $3::integer)
    union
    (select k.record_id from {{.schema}}.checkpoints k
     where (select not c.settled from consumer c) and k.consumer_id = $1::integer and k.record_id > $2::bigint
     order by k.record_id limit $3::integer)
  ) u
  order by u.record_id limit $3::integer
)
select c.record_id, r.head > coalesce(k.seq, greatest(r.cursor, m.cursor)) and ($4::text is null or r.tenant = $4::text)
from candidates c
cross join lateral (select r.head, r.cursor, r.tenant from {{.schema}}.records r where r.id = c.record_id offset 0) r
left join lateral (select m.cursor from {{.schema}}.mailboxes m where m.record_id = c.record_id offset 0) m on true
left join lateral (select k.seq from {{.schema}}.checkpoints k where k.record_id = c.record_id and k.consumer_id = $1::integer offset 0) k on true
order by c.record_id
