update {{.Table}} as {{.Alias}}
set {{.DoneSet}}, {{.AtColumn}} = clock_timestamp(), {{.KeyColumn}} = coalesce({{.Alias}}.{{.KeyColumn}}, {{.Fn "key"}}({{.Alias}}))
where {{.PendingWhere}};
