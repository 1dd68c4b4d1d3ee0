-- Whether a row would still wait once it is marked done: one of those that wait, or one as the columns' defaults make it.
select coalesce(bool_or(coalesce(({{.Pending}}
)::boolean, false)), false)
from (select {{.AsDone}} from (
  (select {{.AsIs}} from {{.Table}} as {{.Alias}} where {{.PendingWhere}} limit 100)
  union all
  (select {{.AsIs}} from (select {{.Fresh}}) as {{.Alias}} where {{.PendingWhere}})
) as {{.Alias}}) as {{.Alias}};
