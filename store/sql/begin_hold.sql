begin isolation level read committed;
select {{.schema}}.hold(%d, %d, %d),
  case when current_setting('idle_in_transaction_session_timeout') <> '0' then set_config('idle_in_transaction_session_timeout', '0', true) end,
  case when current_setting('transaction_timeout', true) <> '0' then set_config('transaction_timeout', '0', true) end;
savepoint keyline_handler
