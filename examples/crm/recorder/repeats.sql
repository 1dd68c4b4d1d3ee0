-- The deliveries that succeeded again without a reason: between two runs the worker of neither lost its claims, nor ($1, $2)
-- did all workers lose their sessions.
with runs as (
  select b.id, b.at, b.worker, b.consumer, b.tenant, b.record_key, b.seq,
    lag(b.at) over earlier as first_at, lag(b.worker) over earlier as first_worker
  from crm.delivered_log b
  where b.mark = 'begin' and exists (
    select from crm.delivered_log d where d.mark = 'done' and d.run = b.run and d.seq = b.seq)
  window earlier as (partition by b.consumer, b.tenant, b.record_key, b.seq order by b.id)
)
select r.consumer, r.tenant, r.record_key, r.seq, r.first_worker, r.first_at, r.worker, r.at
from runs r
where r.first_at is not null
  -- Who loses its claims between the runs may have lost the first one's success. A worker that was cut off says so with its
  -- lease added. The second run may be a zombie's, who was lost before and, frozen for some leases, does not know it.
  and not exists (
    select from keyline.workers w
    where w.status <> 'live' and w.ended_at <= r.at + w.lease
      and (w.name = r.first_worker and w.ended_at >= r.first_at - w.lease or w.name = r.worker and w.ended_at >= r.first_at - 4 * w.lease))
  and not exists (
    select from unnest($1::timestamptz[], $2::timestamptz[]) o (began, ended) where o.began <= r.at and o.ended >= r.first_at)
order by r.id
