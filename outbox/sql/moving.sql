-- What waits, in the order in which append_many locks records too, and within a record as the old drainer would have gone on.
create temp table keyline_moving on commit drop as
select row_number() over (order by coalesce(o.e ->> 'tenant', '') collate "C", o.e ->> 'record_key' collate "C", o.created, o.id) as place, o.e
from (select {{.Fn "event"}}({{.Alias}}) as e, {{.Created}} as created, {{.ID}} as id from {{.Table}} as {{.Alias}} where {{.PendingWhere}}) o;
