lock table {{.Table}} in access exclusive mode;
alter table {{.Table}} add column if not exists {{.KeyColumn}} text, add column if not exists {{.AtColumn}} timestamptz;
