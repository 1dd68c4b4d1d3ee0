package keyline_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	osexec "os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/pgdev"
	"github.com/keylinehq/keyline/internal/testdb"
)

// psqlBinary is the one on PATH, else the one beside the server's binaries.
func psqlBinary(t *testing.T) string {
	t.Helper()
	if path, err := osexec.LookPath("psql"); err == nil {
		return path
	}
	dir, err := pgdev.Find()
	if err != nil {
		t.Fatalf("psql is needed: %v", err)
	}
	return filepath.Join(dir, "psql")
}

// psql runs a script as a person would and returns what it prints, or its errors.
func psql(t *testing.T, db *testdb.DB, script string, args ...string) (string, error) {
	t.Helper()
	args = append([]string{db.URL, "--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "-v", "ON_ERROR_STOP=1", "-v", "VERBOSITY=verbose"}, args...)
	cmd := osexec.CommandContext(t.Context(), psqlBinary(t), args...)
	cmd.Stdin = strings.NewReader(script)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return out.String(), errors.Join(err, errors.New(errOut.String()))
	}
	return out.String(), nil
}

func fences(t *testing.T, language string) []string {
	t.Helper()
	text := must(os.ReadFile("docs/sql.md"))(t)
	var list []string
	for _, m := range regexp.MustCompile("(?ms)^ *```"+language+"\n(.*?)^ *```").FindAllSubmatch(text, -1) {
		list = append(list, string(m[1]))
	}
	return list
}

func TestTheStatementsOfTheSQLPageRun(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	scripts := fences(t, "sql")
	if len(scripts) < 6 {
		t.Fatalf("found %d scripts in docs/sql.md", len(scripts))
	}
	var outputs []string
	for _, script := range scripts {
		out, err := psql(t, db, script)
		if err != nil {
			t.Fatalf("%s\n%v", script, err)
		}
		outputs = append(outputs, out)
	}
	for i, want := range []string{
		`\A[0-9a-f-]{36}\|1\|f\n\z`,
		`\A[0-9a-f-]{36}\|1\|f\n\z`, // of tenant acme
		`\A[0-9a-f-]{36}\|1\|f\n[0-9a-f-]{36}\|2\|f\n[0-9a-f-]{36}\|2\|f\n\z`,
		`\A1\|[0-9a-f-]{36}\|activity.completed\|1\|{"by": "u1"}\|{"correlation_id": "req-77"}\|.*\n2\|.*activity.commented.*\n\z`,
	} {
		if !regexp.MustCompile(want).MatchString(outputs[i]) {
			t.Errorf("script %d printed\n%s\nwant %s\n%s", i, outputs[i], want, scripts[i])
		}
	}
	events := must(newClient(t, keyline.ClientConfig{}).Events(t.Context(), db.Pool(), keyline.Key{Tenant: "acme", Record: "activity:42"}, 0, 0))(t)
	var types []string
	for _, e := range events {
		types = append(types, e.Type)
	}
	if want := []string{"activity.completed", "activity.commented", "activity.archived", "activity.reopened"}; !slices.Equal(types, want) {
		t.Errorf("the page's record has the events %v, want %v", types, want)
	}
}

func TestThePsqlCommandOfTheSQLPageRuns(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	shell := fences(t, "console")
	if len(shell) != 1 {
		t.Fatalf("%d shell commands in docs/sql.md", len(shell))
	}
	cmd := osexec.CommandContext(t.Context(), "sh", "-c", strings.TrimPrefix(shell[0], "$ "))
	cmd.Env = append(os.Environ(), "DATABASE_URL="+db.URL, "PATH="+filepath.Dir(psqlBinary(t))+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "1\n") {
		t.Fatalf("%v\n%s", err, out)
	}
	events := must(newClient(t, keyline.ClientConfig{}).Events(t.Context(), db.Pool(), keyline.Key{Record: "activity:44"}, 0, 0))(t)
	if len(events) != 1 || string(events[0].Payload) != `{"title": "Write"}` {
		t.Errorf("appended %+v", events)
	}
}

// TestTheErrorsOfTheSQLPage provokes each SQLSTATE of the page's table, and
// fails for a row that it does not know.
func TestTheErrorsOfTheSQLPage(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	exec(t, db.Pool(), `update keyline.meta set in_process_types = '{claimed}'`)
	exec(t, db.Pool(), `insert into keyline.event_types (type, version) values ('t', 1)`)
	if _, err := psql(t, db, `select keyline.append('r', 't', '1', idempotency_key => 'k', event_id => '0190d7c8-0000-7000-8000-000000000001')`); err != nil {
		t.Fatal(err)
	}
	strict := `update keyline.meta set registry_strict = true; `
	provoke := map[string][]string{
		"KL001": {`keyline.append('r', 't', '1', expected_seq => 0)`, `keyline.append('new', 't', '1', expected_seq => 1)`},
		"KL002": {`keyline.append('r', 't', '2', idempotency_key => 'k')`, `keyline.append('s', 't', '1', event_id => '0190d7c8-0000-7000-8000-000000000001')`},
		"KL003": {`keyline.append('r', null, '1')`, `keyline.append('r', E' \t', '1')`, `keyline.append('r', repeat('t', 256), '1')`,
			`keyline.append('r', 't', '1', version => 0)`, `keyline.append('r', 't', '1', headers => '[]')`,
			`keyline.append('r', 't', '1', headers => '{"a": 1}')`, `keyline.append('r', 't', '1', headers => jsonb_build_object('a', repeat('x', 65536)))`,
			`keyline.append('r', 't', '1', expected_seq => -1)`, `keyline.append(' ', 't', '1', expected_seq => 0)`,
			`keyline.append('r', 't', '1', tenant => repeat('é', 257))`, `keyline.append('r', 't', '1', idempotency_key => '')`,
			`keyline.append('r', 't', '1', occurred_at => 'infinity')`, `keyline.append('r', 't', '1', occurred_at => '10000-01-01 00:00:00+00')`,
			`keyline.append('r', 't', '1', occurred_at => '0001-01-01 00:00:00+00 BC')`,
			`keyline.append_many('{}')`, `keyline.append_many(null)`, `keyline.append_many('[1]')`,
			`keyline.append_many('[{"record_key": "r", "event_typ": "t"}]')`, `keyline.append_many('[{"record_key": ["r"], "event_type": "t"}]')`},
		"KL004": {strict + `select keyline.append('r', 't', '1', version => 2)`, strict + `select keyline.append('r', 'u', '1')`},
		"KL005": {`keyline.append('r', 't', to_jsonb(repeat('x', 1048576)))`, `keyline.append('r', 't', '[1e131071,1e131071,1e131071,1e131071,1e131071,1e131071,1e131071,1e131071]')`},
		"KL007": {`keyline.append('r', 'claimed', '1')`},
		"KL010": {strict + `update keyline.events set type = 'u'`, strict + `delete from keyline.events`, strict + `truncate keyline.events`},
		"class 22": {`keyline.append('r', 't', '{')`, `keyline.append('r', 't', '"\u0000"')`, `keyline.append('r', 't', '"\ud800"')`,
			`keyline.append(E'\xff', 't', '1')`, `keyline.append('r', 't', '1e999999')`,
			`keyline.append_many('[{"record_key": "r", "event_type": "t", "version": "x"}]')`},
		"class 54": {`keyline.append('r', 't', (repeat('[', 100000) || repeat(']', 100000))::jsonb)`},
		"40001":    nil, // TestRepeatableReadConflictsAreToBeRunAgain
		"40P01":    nil, // and the deadlock that Postgres finds
	}
	var documented []string
	text := must(os.ReadFile("docs/sql.md"))(t)
	for _, row := range regexp.MustCompile("(?m)^\\| (`(?:KL|4)[^|]*|class \\d\\d) \\|").FindAllStringSubmatch(string(text), -1) {
		documented = append(documented, strings.Split(strings.ReplaceAll(row[1], "`", ""), ", ")...)
	}
	for state, statements := range provoke {
		if !slices.Contains(documented, state) {
			t.Errorf("docs/sql.md has no row for %s", state)
		}
		want := strings.TrimPrefix(state, "class ")
		for _, text := range statements {
			if !strings.Contains(text, ";") {
				text = "select " + text
			}
			_, err := psql(t, db, "begin; "+text+"; rollback;")
			if err == nil || !strings.Contains(err.Error(), "ERROR:  "+want) {
				t.Errorf("%s: %v, want SQLSTATE %s", text, err, state)
			}
		}
	}
	for _, state := range documented {
		if _, known := provoke[state]; !known {
			t.Errorf("docs/sql.md has a row for %s that nothing here provokes", state)
		}
	}
}

func TestOnlyAppendFlagsAFallbackKey(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	out, err := psql(t, db, `
		select from keyline.append('r', 't', '1', headers => '{"keyline_fallback_key": "true", "a": "b"}');
		select from keyline.append_many('[{"record_key": "r", "event_type": "t", "headers": {"keyline_fallback_key": "true"}}, {"event_type": "t", "headers": null}]');
		select headers from keyline.events join keyline.records r on r.id = record_id order by r.id, seq;`)
	if err != nil || strings.TrimLeft(out, "\n") != `{"a": "b"}`+"\n{}\n"+`{"keyline_fallback_key": "true"}`+"\n" {
		t.Errorf("headers %q, %v", out, err)
	}
}

func TestAppendNeedsNoRightsOnTables(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	role := db.Name + "_app"
	exec(t, db.Pool(), `create role `+role)
	t.Cleanup(func() {
		// The test's context is done by now; roles are the server's, not the database's.
		if _, err := db.Pool().Exec(context.WithoutCancel(t.Context()), `drop owned by `+role+` cascade`); err != nil {
			t.Error(err)
		}
		if _, err := db.Pool().Exec(context.WithoutCancel(t.Context()), `drop role `+role); err != nil {
			t.Error(err)
		}
	})
	conn := db.Connect()
	exec(t, conn, `set role `+role)
	client := newClient(t, keyline.ClientConfig{})
	event := keyline.NewEvent{Key: keyline.Key{Record: "r"}, Type: "t"}
	_, err := client.Append(t.Context(), conn, event)
	wantError(t, err, nil, keyline.CodePermissionDenied)
	exec(t, db.Pool(), `grant usage on schema keyline to `+role)
	must(client.Append(t.Context(), conn, event))(t)
	must(client.AppendMany(t.Context(), conn, []keyline.NewEvent{event, event}))(t)
	_, err = client.Events(t.Context(), conn, event.Key, 0, 0)
	wantError(t, err, nil, keyline.CodePermissionDenied)
	exec(t, db.Pool(), `grant select on keyline.records, keyline.events to `+role)
	if n := len(must(client.Events(t.Context(), conn, event.Key, 0, 0))(t)); n != 3 {
		t.Errorf("read %d events, want 3", n)
	}
}
