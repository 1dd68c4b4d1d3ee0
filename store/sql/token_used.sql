-- Notes that a token was used. A row that somebody else has is not waited for: it is a hint, and no fact.
update {{.schema}}.api_tokens t set last_used_at = clock_timestamp()
where t.id = (select u.id from {{.schema}}.api_tokens u where u.id = $1 for no key update skip locked)
