-- Rows that wait, at most $1 + 1 of them, the oldest, and how many have no key yet.
select count(*), min({{.Created}})::text, count(*) filter (where {{.HasNoKey}})
from (select * from {{.Table}} as {{.Alias}} where {{.PendingWhere}} limit $1::bigint + 1) as {{.Alias}};
