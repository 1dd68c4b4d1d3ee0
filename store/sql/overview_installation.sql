-- What an installation is, and what waits in it. Counts of mailboxes stop at 100,001.
with m as (select m.* from {{.schema}}.mailboxes m limit 100001)
select i.cluster_id::text, i.ordering, i.registry_strict,
  (select count(*) from m where m.claimed_by is not null),
  (select count(*) from m where m.claimed_by is null and m.due_at <= clock_timestamp()),
  (select count(*) from m where m.claimed_by is null and m.due_at > clock_timestamp()),
  (select count(*) from m where m.wants is not null)
from {{.schema}}.meta i
