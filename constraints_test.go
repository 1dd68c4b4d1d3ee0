package keyline_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
)

// sqlState runs a statement in a savepoint of tx and returns its SQLSTATE and
// the constraint that it broke.
func sqlState(t *testing.T, tx pgx.Tx, text string) (state, constraint string) {
	t.Helper()
	inner := must(tx.Begin(t.Context()))(t)
	_, err := inner.Exec(t.Context(), text)
	if rollbackErr := inner.Rollback(t.Context()); rollbackErr != nil {
		t.Fatal(rollbackErr)
	}
	if err == nil {
		return "", ""
	}
	var broken interface{ SQLState() string }
	if !errors.As(err, &broken) {
		t.Fatalf("%s: %v", text, err)
	}
	// The message of a check violation names the constraint.
	_, rest, _ := strings.Cut(err.Error(), "check constraint \"")
	constraint, _, _ = strings.Cut(rest, "\"")
	return broken.SQLState(), constraint
}

func TestEventsAreAppendOnly(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	client := newClient(t, keyline.ClientConfig{})
	must(client.Append(t.Context(), db.Pool(), keyline.NewEvent{Key: keyline.Key{Record: "r"}, Type: "t"}))(t)
	tx := must(db.Connect().Begin(t.Context()))(t)
	for _, text := range []string{
		`update keyline.events set payload = '{}'`, `update keyline.events set created_at = now()`, `delete from keyline.events`,
		`truncate keyline.events`, `truncate keyline.events, keyline.records`,
		`set local keyline.pruning = 'on'; delete from keyline.events`,
		`select set_config('keyline.pruning', (pg_current_xact_id()::text::bigint - 1)::text, true); delete from keyline.events`,
		`merge into keyline.events e using (values (1)) v on true when matched then delete`,
	} {
		if state, _ := sqlState(t, tx, text); state != "KL010" {
			t.Errorf("%s: SQLSTATE %q, want KL010", text, state)
		}
	}
}

// TestConstraintsRefuseImpossibleRows breaks each check constraint of the
// schema at least once, and fails for one that it does not know.
func TestConstraintsRefuseImpossibleRows(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	tx := must(db.Connect().Begin(t.Context()))(t)
	const (
		consumer = `insert into keyline.consumers (name, status, revision, types, on_unsupported, start_kind, start_time, effect, effect_note,
			retry_delays_ms, retry_jitter, on_dead, scope, transactional, sweep) values `
		dead   = `insert into keyline.dead_letters (record_id, seq, consumer_id, event_id, attempt, reason, error_code, first_failed_at, failed_at, status, due_at, resolved_at) values `
		token  = `insert into keyline.api_tokens (name, role, hash, tenant, created_by, revoked_at, revoked_by) values `
		worker = `insert into keyline.workers (name, instance, host, pid, status, lease, ended_at) values `
	)
	broken := map[string][]string{
		"meta_one_check":           {`insert into keyline.meta (one) values (false)`},
		"meta_ordering_check":      {`update keyline.meta set ordering = 'random'`},
		"meta_payload_limit_check": {`update keyline.meta set payload_limit = 0`},
		"meta_oldest_binary_check": {`update keyline.meta set oldest_binary = 0`},
		"records_cursor": {`insert into keyline.records (tenant, record_key, head, cursor) values ('', 'r', 1, 2)`,
			`insert into keyline.records (tenant, record_key, head, cursor) values ('', 'r', 1, -1)`},
		"mailboxes_claim": {`insert into keyline.mailboxes (record_id, due_at, claimed_by) values (1, now(), 1)`,
			`insert into keyline.mailboxes (record_id, due_at, claimed_at) values (1, now(), now())`},
		"mailboxes_wants": {`insert into keyline.mailboxes (record_id, due_at, wants) values (1, now(), '{1}')`,
			`insert into keyline.mailboxes (record_id, due_at, wants_due_at) values (1, now(), now())`,
			`insert into keyline.mailboxes (record_id, due_at, wants, wants_due_at, claimed_by, claimed_at) values (1, now(), '{1}', now(), 1, now())`},
		"api_tokens_role": {token + `('t', 'owner', decode(repeat('00', 32), 'hex'), null, 'a', null, null)`},
		"api_tokens_named": {token + `('', 'viewer', decode(repeat('00', 32), 'hex'), null, 'a', null, null)`,
			token + `(repeat('x', 101), 'viewer', decode(repeat('00', 32), 'hex'), null, 'a', null, null)`,
			token + `('t', 'viewer', decode(repeat('00', 32), 'hex'), repeat('x', 513), 'a', null, null)`},
		"api_tokens_hash": {token + `('t', 'viewer', '\x00', null, 'a', null, null)`},
		"api_tokens_revoked": {token + `('t', 'viewer', decode(repeat('00', 32), 'hex'), null, 'a', now(), null)`,
			token + `('t', 'viewer', decode(repeat('00', 32), 'hex'), null, 'a', null, 'b')`},
		"consumers_status":         {consumer + `('c', 'asleep', 1, '{*}', 'skip', 'now', null, 'none', '', '{}', 0, 'advance', 'one_for_one', false, null)`},
		"consumers_on_unsupported": {consumer + `('c', 'active', 1, '{*}', 'panic', 'now', null, 'none', '', '{}', 0, 'advance', 'one_for_one', false, null)`},
		"consumers_start": {consumer + `('c', 'active', 1, '{*}', 'skip', 'later', null, 'none', '', '{}', 0, 'advance', 'one_for_one', false, null)`,
			consumer + `('c', 'active', 1, '{*}', 'skip', 'at', null, 'none', '', '{}', 0, 'advance', 'one_for_one', false, null)`,
			consumer + `('c', 'active', 1, '{*}', 'skip', 'now', now(), 'none', '', '{}', 0, 'advance', 'one_for_one', false, null)`},
		"consumers_effect": {consumer + `('c', 'active', 1, '{*}', 'skip', 'now', null, '', '', '{}', 0, 'advance', 'one_for_one', false, null)`,
			consumer + `('c', 'active', 1, '{*}', 'skip', 'now', null, 'external', '', '{}', 0, 'advance', 'one_for_one', false, null)`},
		"consumers_on_dead": {consumer + `('c', 'active', 1, '{*}', 'skip', 'now', null, 'none', '', '{}', 0, 'stop', 'one_for_one', false, null)`},
		"consumers_scope":   {consumer + `('c', 'active', 1, '{*}', 'skip', 'now', null, 'none', '', '{}', 0, 'advance', 'none_for_all', false, null)`},
		"consumers_sweep":   {consumer + `('c', 'active', 1, '{*}', 'skip', 'now', null, 'none', '', '{}', 0, 'advance', 'one_for_one', false, 'broom')`},
		"checkpoints_state": {`insert into keyline.checkpoints (record_id, consumer_id, seq, state) values (1, 1, 0, 'running')`},
		"checkpoints_due": {`insert into keyline.checkpoints (record_id, consumer_id, seq, state) values (1, 1, 0, 'backoff')`,
			`insert into keyline.checkpoints (record_id, consumer_id, seq, state, next_attempt_at) values (1, 1, 0, 'ready', now())`},
		"checkpoints_counts": {`insert into keyline.checkpoints (record_id, consumer_id, seq, state) values (1, 1, -1, 'ready')`,
			`insert into keyline.checkpoints (record_id, consumer_id, seq, state, attempt) values (1, 1, 0, 'ready', -1)`,
			`insert into keyline.checkpoints (record_id, consumer_id, seq, state, attempt, granted) values (1, 1, 0, 'ready', 1, 2)`,
			`insert into keyline.checkpoints (record_id, consumer_id, seq, state, crashes) values (1, 1, 0, 'ready', -1)`},
		"checkpoints_redeliver_to": {`insert into keyline.checkpoints (record_id, consumer_id, seq, state, redeliver_to) values (1, 1, 0, 'ready', -1)`},
		"checkpoints_started":      {`insert into keyline.checkpoints (record_id, consumer_id, seq, state, attempt) values (1, 1, 0, 'started', 0)`},
		"dead_letters_reason":      {dead + `(1, 1, 1, gen_random_uuid(), 1, 'boredom', 'x', now(), now(), 'open', null, null)`},
		"dead_letters_status":      {dead + `(1, 1, 1, gen_random_uuid(), 1, 'permanent', 'x', now(), now(), 'lost', null, null)`},
		"dead_letters_due": {dead + `(1, 1, 1, gen_random_uuid(), 1, 'permanent', 'x', now(), now(), 'retrying', null, null)`,
			dead + `(1, 1, 1, gen_random_uuid(), 1, 'permanent', 'x', now(), now(), 'open', now(), null)`},
		"dead_letters_end": {dead + `(1, 1, 1, gen_random_uuid(), 1, 'permanent', 'x', now(), now(), 'resolved', null, null)`,
			dead + `(1, 1, 1, gen_random_uuid(), 1, 'permanent', 'x', now(), now(), 'open', null, now())`},
		"commands_kind":    {`insert into keyline.commands (record_id, kind, actor) values (1, 'explode', 'a')`},
		"commands_applied": {`insert into keyline.commands (record_id, kind, actor, done) values (1, 'retry', 'a', true)`},
		"commands_target":  {`insert into keyline.commands (record_id, kind, actor) values (1, 'resolve_dead_letter', 'a')`},
		"pruned_seq":       {`insert into keyline.pruned values (1, 0)`},
		"workers_status":   {worker + `('w', gen_random_uuid(), 'h', 1, 'tired', '15 s', now())`},
		"workers_ended": {worker + `('w', gen_random_uuid(), 'h', 1, 'live', '15 s', now())`,
			worker + `('w', gen_random_uuid(), 'h', 1, 'lost', '15 s', null)`},
	}
	names := must(pgx.CollectRows(must(tx.Query(t.Context(),
		`select conname::text from pg_constraint where connamespace = 'keyline'::regnamespace and contype = 'c' order by 1`))(t), pgx.RowTo[string]))(t)
	for _, name := range names {
		if len(broken[name]) == 0 {
			t.Errorf("nothing here tries to break the constraint %s", name)
		}
	}
	for name, statements := range broken {
		if !slices.Contains(names, name) {
			t.Errorf("there is no constraint %s", name)
		}
		for _, text := range statements {
			state, got := sqlState(t, tx, text)
			// A row that is wrong in two ways breaks the constraint whose name comes first.
			if state != "23514" || got != name {
				t.Errorf("%s: SQLSTATE %q by %q, want 23514 by %s", text, state, got, name)
			}
		}
	}
}

func TestUniquenessIsTheDatabasesToo(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	tx := must(db.Connect().Begin(t.Context()))(t)
	exec(t, tx, `insert into keyline.records (tenant, record_key, head) values ('', 'r', 2)`)
	exec(t, tx, `insert into keyline.events (record_id, seq, id, type, version, payload, headers, idempotency_key, occurred_at, created_at)
		values (1, 1, '0190d7c8-0000-7000-8000-000000000001', 't', 1, '{}', '{}', 'k', now(), now())`)
	const event = `insert into keyline.events (record_id, seq, id, type, version, payload, headers, idempotency_key, occurred_at, created_at) values `
	for _, text := range []string{
		`insert into keyline.records (tenant, record_key, head) values ('', 'r', 2)`,
		event + `(1, 1, gen_random_uuid(), 't', 1, '{}', '{}', null, now(), now())`,
		event + `(1, 2, '0190d7c8-0000-7000-8000-000000000001', 't', 1, '{}', '{}', null, now(), now())`,
		event + `(1, 2, gen_random_uuid(), 't', 1, '{}', '{}', 'k', now(), now())`,
		`insert into keyline.meta default values`,
	} {
		if state, _ := sqlState(t, tx, text); state != "23505" {
			t.Errorf("%s: SQLSTATE %q, want 23505", text, state)
		}
	}
}
