package keylinetest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
	"github.com/keylinehq/keyline/keylinetest"
)

func TestMain(m *testing.M) { os.Exit(testdb.Main(m)) } // keylinetest.Main, and a look for leaks

var errFails = errors.New("not now")

func on(record string, types ...string) []keyline.NewEvent {
	var events []keyline.NewEvent
	for _, t := range types {
		events = append(events, keyline.NewEvent{Key: keyline.Key{Record: record}, Type: t})
	}
	return events
}

// failing fails the first n runs of each delivery.
func failing(name string, n int, change ...func(*keyline.Consumer)) keyline.Consumer {
	c := keyline.Consumer{Name: name, Types: []string{"*"}, Effect: keyline.None(), Handle: func(_ context.Context, d *keyline.Delivery) error {
		if d.Attempt <= n {
			return errFails
		}
		return nil
	}}
	for _, f := range change {
		f(&c)
	}
	return c
}

// watched is a test whose errors are looked at.
type watched struct {
	testing.TB
	errors []string
}

func (w *watched) Errorf(format string, args ...any) {
	w.errors = append(w.errors, fmt.Sprintf(format, args...))
}

// Promise: Run delivers until nothing is left, retries at once and in order, also what
// was appended before there was a worker; and a consumer that comes later gets what is new.
func TestRunDeliversUntilNothingIsLeft(t *testing.T) {
	t.Parallel()
	db := keylinetest.New(t)
	events := db.Append(on("a", "one")...)
	w := db.Worker(failing("steady", 0), failing("flaky", 3), failing("hopeless", 4))
	events = append(events, db.Append(append(on("a", "two"), on("b", "three")...)...)...)
	got := w.Run()
	if len(got) != 3+3*4+3*4 {
		t.Errorf("%d runs", len(got))
	}
	w.AssertDelivered("steady", events...)
	w.AssertDelivered("flaky", events...)
	w.AssertDelivered("hopeless")
	for _, e := range events {
		db.AssertState(e.ID, "flaky", "completed")
		db.AssertState(e.ID, "hopeless", "dead_letter")
	}
	if dead := db.DeadLetters(); len(dead) != 3 || dead[0].Attempt != 4 || dead[0].Message != "not now" {
		t.Errorf("dead letters: %+v", dead)
	}
	if stream := db.Events(keyline.Key{Record: "a"}); len(stream) != 2 || stream[1].Type != "two" {
		t.Errorf("stream: %+v", stream)
	}
	if got := w.Run(); len(got) != 0 {
		t.Errorf("ran again: %+v", got)
	}
	late := db.Worker(failing("late", 0))
	fresh := db.Append(on("a", "four")...)
	late.Run()
	late.AssertDelivered("late", fresh...)
}

func TestALongStreamIsReadToItsEnd(t *testing.T) {
	t.Parallel()
	db := keylinetest.New(t)
	types := slices.Repeat([]string{"one"}, 2*keyline.DefaultEventsLimit)
	db.Append(on("a", types...)...)
	if n := len(db.Events(keyline.Key{Record: "a"})); n != len(types) {
		t.Errorf("%d events, want %d", n, len(types))
	}
}

// Promise: each kind of handler is captured, with its outcome, and does its work.
func TestEachKindOfHandlerIsCaptured(t *testing.T) {
	t.Parallel()
	db := keylinetest.New(t)
	if _, err := db.Pool.Exec(t.Context(), "create table done (seq bigint primary key)"); err != nil {
		t.Fatal(err)
	}
	w := db.Worker(
		keyline.Consumer{Name: "tx", Types: []string{"*"}, Effect: keyline.Database(), HandleTx: func(ctx context.Context, tx pgx.Tx, d *keyline.Delivery) error {
			_, err := tx.Exec(ctx, "insert into done values ($1)", d.Seq)
			return err
		}},
		keyline.Consumer{Name: "batch", Types: []string{"*"}, Effect: keyline.None(), HandleBatch: func(_ context.Context, batch []*keyline.Delivery) error {
			for _, d := range batch {
				d.Seq, d.Payload[0] = -1, 'X' // what a handler does to its own is not seen
			}
			return nil
		}},
		keyline.Consumer{Name: "panics", Types: []string{"*"}, Effect: keyline.None(), Retry: keyline.RetryPolicy{Delays: []time.Duration{}},
			Handle: func(context.Context, *keyline.Delivery) error { panic("at the disco") }},
	)
	events := db.Append(on("a", "one", "two")...)
	w.Run()
	w.AssertDelivered("tx", events...)
	w.AssertDelivered("batch", events...)
	w.AssertDelivered("panics")
	var n int
	if err := db.Pool.QueryRow(t.Context(), "select count(*) from done").Scan(&n); err != nil || n != 2 {
		t.Errorf("%d rows, %v", n, err)
	}
	for _, d := range w.Deliveries() {
		if d.Payload[0] == 'X' {
			t.Errorf("%s: %s", d.Consumer, d.Payload)
		}
		if d.Consumer == "panics" && !errors.Is(d.Err, keylinetest.ErrPanicked) {
			t.Errorf("a panic is %v", d.Err)
		}
	}
	if dead := db.DeadLetters(); len(dead) != 2 || !strings.Contains(dead[0].Message, "at the disco") {
		t.Errorf("dead letters: %+v", dead)
	}
}

// Promise: with the delays kept, Run waits for a retry no longer than it is told.
func TestDelaysCanBeKept(t *testing.T) {
	t.Parallel()
	db := keylinetest.New(t)
	hour := func(c *keyline.Consumer) { c.Retry.Delays = []time.Duration{time.Hour} }
	w := db.WorkerWith(keylinetest.Options{KeepDelays: true}, failing("late", 1, hour))
	event := db.Append(on("a", "one")...)[0]
	if got := w.Run(); len(got) != 1 || !errors.Is(got[0].Err, errFails) {
		t.Errorf("ran %+v", got)
	}
	db.AssertState(event.ID, "late", "retry_scheduled")
}

// Promise: an act that was asked for is applied by the next Run.
func TestAnActIsAppliedByTheNextRun(t *testing.T) {
	t.Parallel()
	db := keylinetest.New(t)
	w := db.Worker(failing("mended", 4))
	event := db.Append(on("a", "one")...)[0]
	w.Run()
	asked, cancel := context.WithTimeout(t.Context(), 2*time.Second) // long enough for it to be given
	defer cancel()
	if _, err := db.Operator().RetryDeadLetter(asked, db.DeadLetters()[0].ID, "mended"); !errors.Is(err, keyline.ErrUnavailable) {
		t.Fatal(err)
	}
	if got := w.Run(); len(got) != 1 || got[0].Mode != keyline.Replay || got[0].Attempt != 5 || got[0].Err != nil {
		t.Errorf("ran %+v", got)
	}
	db.AssertState(event.ID, "mended", "completed")
	db.AssertNoDeadLetters()
}

// Promise: an assertion that does not hold fails the test, and says what there is.
func TestAssertionsFail(t *testing.T) {
	t.Parallel()
	tb := &watched{TB: t}
	db := keylinetest.New(tb)
	w := db.Worker(failing("c", 0), failing("dies", 4), keyline.Consumer{Name: "careless", Types: []string{"*"}, Effect: keyline.Database(),
		HandleTx: func(ctx context.Context, tx pgx.Tx, _ *keyline.Delivery) error {
			_, _ = tx.Exec(ctx, "insert into nowhere values (1)")
			return nil
		}})
	events := db.Append(on("a", "one", "two")...)
	w.Run()
	for _, wrong := range []struct {
		assert func()
		want   string
	}{
		{func() { w.AssertDelivered("c", events[0]) }, "c has handled events [1 2] of a, want [1]"},
		{func() { w.AssertDelivered("c", events[1], events[0]) }, "c has handled events [1 2] of a, want [2 1]"},
		{func() { w.AssertDelivered("c", append(events, events...)...) }, "c has handled events [1 2] of a, want [1 2 1 2]"},
		{func() { w.AssertDelivered("c") }, "c has handled events [1 2] of a, want none"},
		{func() { w.AssertDelivered("dies", events...) }, "dies has handled events [] of a, want [1 2]"},
		{func() {
			w.AssertDelivered("careless", append(slices.Repeat(events[:1], 4), slices.Repeat(events[1:], 4)...)...)
		},
			"careless has returned nil for event 2 of a, and its delivery failed all the same: "},
		{func() { db.AssertState(events[0].ID, "dies", "completed") }, `to dies is "dead_letter", want "completed"`},
		{func() { db.AssertState(events[0].ID, "nobody", "completed") }, `to nobody is "", want "completed"`},
		{db.AssertNoDeadLetters, "event 2 (two) of a is a dead letter of dies after 4 runs: error: not now"},
	} {
		tb.errors = nil
		wrong.assert()
		if !slices.ContainsFunc(tb.errors, func(said string) bool { return strings.Contains(said, wrong.want) }) {
			t.Errorf("said %q, want %q", tb.errors, wrong.want)
		}
	}
}

// Promise: each test has a database of its own, and a schema of another name works.
func TestEachTestHasADatabaseOfItsOwn(t *testing.T) {
	t.Parallel()
	one, other := keylinetest.New(t), keylinetest.New(t, keylinetest.WithSchema("other"))
	w := other.Worker(failing("c", 0))
	event := other.Append(on("a", "one")...)
	w.Run()
	w.AssertDelivered("c", event...)
	if one.URL == other.URL || len(one.Events(keyline.Key{Record: "a"})) != 0 {
		t.Error("they share one")
	}
}
