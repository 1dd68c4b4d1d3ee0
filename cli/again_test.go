package cli

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
)

// Promise: an act on several things that was broken off is said again: what is done already does not keep it from the rest.
func TestAnActOnSeveralGoesOnWhereItWasBrokenOff(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	count := func(sql string, want int) func() bool {
		return func() bool {
			var n int
			if err := db.Pool().QueryRow(t.Context(), sql).Scan(&n); err != nil {
				t.Fatalf("%s: %v", sql, err)
			}
			return n == want
		}
	}
	w, err := keyline.NewWorker(db.NewPool(nil), keyline.Config{}, keyline.Consumer{
		Name: "c", Types: []string{"*"}, Effect: keyline.None(), Retry: keyline.RetryPolicy{Delays: []time.Duration{}},
		Handle: func(context.Context, *keyline.Delivery) error { return errors.New("no good") },
	})
	if err == nil {
		err = w.Start(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := w.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	for _, key := range []string{"order:1", "order:2"} {
		oneObject(t, exitOK, "append", key, "order.placed", "null", "--database-url", db.URL, "--json")
	}
	testdb.Eventually(t, count("select count(*) from keyline.dead_letters", 2), "two dead letters")
	resolve := func(want int, ids ...string) string {
		t.Helper()
		code, out, talk := runApart(nil, append([]string{"dead-letters", "resolve", "--yes", "--reason", "r", "--database-url", db.URL}, ids...)...)
		if code != want {
			t.Fatalf("%v: exit code %d, want %d: %s%s", ids, code, want, out, talk)
		}
		return talk
	}
	resolve(exitOK, "1") // here it was broken off
	if talk := resolve(exitOK, "1", "2"); !strings.Contains(talk, "dead letter 1 is resolved") {
		t.Errorf("of what was done already it says %q", talk)
	}
	if !count("select count(*) from keyline.dead_letters where status = 'resolved'", 2)() {
		t.Error("the other one is not resolved")
	}
	resolve(exitConflict, "1", "2")
	if !count("select count(*) from keyline.audit", 2)() {
		t.Error("what changed nothing is in the audit, or what did is not")
	}

	// Nothing is to be done about one; of the other it is not known, and that is what the exit code says.
	oneObject(t, exitOK, "append", "order:3", "order.placed", "null", "--database-url", db.URL, "--json")
	testdb.Eventually(t, count("select count(*) from keyline.dead_letters", 3), "a third dead letter")
	if _, err := w.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if talk := resolve(exitUnavailable, "1", "3", "--wait", "3s"); !strings.Contains(talk, "dead letter 1 is resolved") || !strings.Contains(talk, "no worker has applied it") {
		t.Errorf("of one that nothing is to be done about, and one that is not applied yet, it says %q", talk)
	}

	// Of two workers that were asked to drain, one has left.
	if _, err := db.Pool().Exec(t.Context(), `insert into keyline.workers (name, instance, host, pid, lease) values ('stays', gen_random_uuid(), 'h', 1, '1 hour')`); err != nil {
		t.Fatal(err)
	}
	code, out, talk := runApart(nil, "drain", "gone", "stays", "--yes", "--wait", "3s", "--database-url", db.URL)
	if code != exitNotFound || !strings.Contains(talk, "gone") {
		t.Errorf("exit code %d: %s%s", code, out, talk)
	}
	if !count("select count(*) from keyline.workers where name = 'stays' and drain_at is not null", 1)() {
		t.Error("the other one was not asked")
	}
}
