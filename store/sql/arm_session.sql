-- A lock request waits for as long as somebody works, and a session that is dropped loses its lock unnoticed.
select set_config('statement_timeout', '0', false), set_config('lock_timeout', '0', false),
  set_config('idle_session_timeout', '0', false), set_config('idle_in_transaction_session_timeout', '0', false),
  set_config('default_transaction_isolation', 'read committed', false)
