create or replace trigger {{.TriggerGuard}}_update after update on {{.Table}}
  referencing old table as old_rows new table as new_rows for each statement execute function {{.Fn "guard"}}();
create or replace trigger {{.TriggerGuard}}_delete after delete on {{.Table}}
  referencing old table as old_rows for each statement execute function {{.Fn "guard"}}();
create or replace trigger {{.TriggerGuard}}_truncate before truncate on {{.Table}} for each statement execute function {{.Fn "guard"}}();
