package keyline_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/internal/testdb"
)

// appendArguments are, by name, what an append may be called with: SQL expressions, the usual one first.
var appendArguments = []struct {
	name   string
	values []string
}{
	{"record_key", []string{`'r'`, `'other'`, `null`, `' '`, `repeat('k', 512)`, `repeat('k', 513)`}},
	{"event_type", []string{`'t'`, `null`, `''`, `E' \n'`, `repeat('t', 255)`, `repeat('t', 256)`, `'in.process'`}},
	{"payload", []string{`'{"a": 1}'`, `null`, `'null'`, `to_jsonb(repeat('p', 900))`, `to_jsonb(repeat('p', 1100))`, `'1e1001'`}},
	{"tenant", []string{`''`, `null`, `'a'`, `repeat('t', 512)`, `repeat('t', 513)`}},
	{"version", []string{`1`, `null`, `0`, `-1`, `7`}},
	{"headers", []string{`'{}'`, `null`, `'null'`, `'{"a": "b"}'`, `'{"a": "b", "c": 1}'`, `'{"a": ["b"]}'`, `'{"a": {"b": "c"}}'`, `'{"a": null}'`, `'[]'`, `'["a"]'`, `'"a"'`,
		`'{"keyline_fallback_key": "true", "a": "b"}'`, `jsonb_build_object('a', repeat('h', 65000))`, `jsonb_build_object('a', repeat('h', 66000))`}},
	{"idempotency_key", []string{`null`, `''`, `'used'`, `'new'`, `repeat('i', 513)`}},
	{"event_id", []string{`'018f0000-0000-7000-8000-000000000001'`, `null`, `'018f0000-0000-7000-8000-00000000000f'`}},
	{"occurred_at", []string{`null`, `'2020-01-02 03:04:05+00'`, `'infinity'`, `'-infinity'`, `'0001-01-01 00:00:00+00 BC'`, `'10000-01-01 00:00:00+00'`}},
	{"expected_seq", []string{`null`, `0`, `1`, `-1`}},
}

// append has a short way for what is usual. Whatever is asked of it, the outcome is that of append_full, which has all: the
// answer, the rows and the refusal.
func TestTheShortWayOfAppendDoesWhatTheFullOneDoes(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	conn := db.Connect()
	exec(t, conn, `update keyline.meta set in_process_types = '{in.process}', payload_limit = 1000`)
	// A record with an event, and a mailbox in backoff that wants a consumer; and the id and the idempotency key of that event.
	exec(t, conn, `select keyline.append('other', 't', '{}', idempotency_key => 'used', event_id => '018f0000-0000-7000-8000-00000000000f')`)
	exec(t, conn, `update keyline.mailboxes set due_at = now() + interval '1 hour', wants = '{1}', wants_due_at = now()`)

	try := func(function string, given []string) string {
		tx := must(conn.Begin(t.Context()))(t)
		defer func() {
			if err := tx.Rollback(context.WithoutCancel(t.Context())); err != nil {
				t.Error(err)
			}
		}()
		exec(t, tx, `set local search_path = pg_catalog, pg_temp`) // which append sets for itself, and append_full inherits
		var id, answer string
		if err := tx.QueryRow(t.Context(), `select event_id::text, format('seq %s, duplicate %s', seq, duplicate) from keyline.`+function+
			`(`+strings.Join(given, ", ")+`)`).Scan(&id, &answer); err != nil {
			return err.Error()
		}
		rows := scalar[string](t, tx, `select string_agg(concat_ws(' ', r.tenant, r.record_key, 'head', r.head, 'event', e.seq, e.type, e.version, md5(e.payload::text), md5(e.headers::text),
				'key', e.idempotency_key, 'occurred', case when e.occurred_at = e.created_at then 'now' else e.occurred_at::text end, 'created', e.created_at >= now(),
				'mailbox', case when m.due_at = e.created_at then 'due' else (m.due_at <= clock_timestamp())::text end, m.wants, m.wants_due_at), e'\n' order by r.record_key, e.seq)
			from keyline.records r left join keyline.events e on e.record_id = r.id left join keyline.mailboxes m on m.record_id = r.id`)
		if !strings.Contains(strings.Join(given, " "), "event_id => null") {
			answer += ", id " + id
		} else {
			rows = strings.ReplaceAll(rows, id, "drawn") // an event without a key is a record of that name
		}
		return answer + "\n" + rows
	}
	check := func(given ...string) {
		t.Helper()
		short, full := try("append", given), try("append_full", given)
		if short != full {
			t.Errorf("append(%s):\n%.2000s\nappend_full:\n%.2000s", strings.Join(given, ", "), short, full)
		}
	}
	if got := try("append", []string{`record_key => 'r'`, `event_type => 't'`, `payload => '1'`}); !strings.HasPrefix(got, "seq 1, duplicate f") {
		t.Fatalf("nothing is compared: %s", got)
	}
	// Every two values together, the rest being usual.
	for i, a := range appendArguments {
		for j := range i {
			for _, x := range a.values {
				for _, y := range appendArguments[j].values {
					var given []string
					for k, usual := range appendArguments {
						value := usual.values[0]
						switch k {
						case i:
							value = x
						case j:
							value = y
						}
						given = append(given, fmt.Sprintf("%s => %s", usual.name, value))
					}
					check(given...)
				}
			}
		}
	}
	exec(t, conn, `update keyline.meta set registry_strict = true`)
	check(`record_key => 'r'`, `event_type => 't'`, `payload => '1'`, `event_id => '018f0000-0000-7000-8000-000000000001'`)
}

// It is the short way that what is usual takes: with and without headers, for a new record and one that is due.
func TestWhatIsUsualTakesTheShortWayOfAppend(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	conn := db.Connect()
	exec(t, conn, `set track_functions = 'pl'`)
	for _, call := range []struct {
		sql  string
		full bool
	}{
		{`select keyline.append('r', 't', '{}')`, false},
		{`select keyline.append('r', 't', '{}', 'tenant', 2, '{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}', occurred_at => now(), event_id => gen_random_uuid())`, false},
		{`select keyline.append_many('[{"record_key": "r", "event_type": "t", "payload": 1}]')`, false},
		{`select keyline.append('r', 't', '{}', idempotency_key => 'k')`, true},
	} {
		tx := must(conn.Begin(t.Context()))(t)
		must(tx.Exec(t.Context(), call.sql, pgx.QueryExecModeExec))(t)
		calls := scalar[int64](t, tx, `select coalesce(sum(calls), 0)::bigint from pg_stat_xact_user_functions where schemaname = 'keyline' and funcname = 'append_full'`)
		if (calls > 0) != call.full {
			t.Errorf("%s: %d calls of append_full", call.sql, calls)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
