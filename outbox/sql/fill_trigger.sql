create or replace trigger {{.TriggerFill}} before insert on {{.Table}} for each row execute function {{.Fn "fill"}}();
