drop trigger {{.TriggerAccept}} on {{.Table}};
drop trigger {{.TriggerForward}} on {{.Table}};
