-- The tables whose rows change all the time. Sizes are without indexes.
select s.relname::text, s.n_live_tup, s.n_dead_tup, pg_relation_size(s.relid)
from pg_stat_user_tables s
where s.schemaname = $1::text and s.relname in ('records', 'mailboxes', 'checkpoints', 'workers', 'consumer_health')
order by s.n_dead_tup desc
