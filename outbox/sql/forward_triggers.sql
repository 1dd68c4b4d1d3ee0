create trigger {{.TriggerAccept}} before insert on {{.Table}} for each row execute function {{.Fn "accept"}}();
create trigger {{.TriggerForward}} after insert on {{.Table}} for each row when (new.{{.AtColumn}} is not null) execute function {{.Fn "forward"}}();
