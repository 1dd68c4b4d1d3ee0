package keyline_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/testdb"
)

// all runs f for 0 … n-1 at once and returns its errors, in that order.
func all(n int, f func(i int) error) []error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	return errs
}

func wide(db *testdb.DB, n int32) *pgxpool.Pool {
	return db.NewPool(func(c *pgxpool.Config) { c.MaxConns = n })
}

// waitUntilBlocked waits until a backend waits for a lock.
func waitUntilBlocked(t *testing.T, db keyline.PGX, pid uint32) {
	t.Helper()
	testdb.Eventually(t, func() bool {
		return scalar[bool](t, db, `select cardinality(pg_blocking_pids($1::int)) > 0`, int32(pid))
	}, "backend %d to wait for a lock", pid)
}

func TestConcurrentAppendsWithOneIdempotencyKeyMakeOneEvent(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	client := newClient(t, keyline.ClientConfig{})
	pool := wide(db, 8)
	for round := range 20 {
		for _, record := range []string{fmt.Sprintf("r%d", round), ""} { // of its own record too
			results := make([]keyline.Appended, 8)
			errs := all(8, func(i int) (err error) {
				results[i], err = client.Append(t.Context(), pool, keyline.NewEvent{
					Key: keyline.Key{Record: record}, Type: "t", IdempotencyKey: fmt.Sprintf("key-%d", round)})
				return err
			})
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			firsts := 0
			for _, a := range results {
				if a.ID != results[0].ID || a.Seq != 1 {
					t.Fatalf("results differ: %+v", results)
				}
				if !a.Duplicate {
					firsts++
				}
			}
			if firsts != 1 {
				t.Fatalf("%d of the appends say that they were the first: %+v", firsts, results)
			}
		}
	}
	if n := scalar[int64](t, pool, `select count(*) from keyline.events`); n != 40 {
		t.Errorf("%d events, want 40", n)
	}
}

func TestConcurrentAppendsWithOneEventIDMakeOneEvent(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	client := newClient(t, keyline.ClientConfig{})
	id := uuid.New()
	first := must(db.Connect().Begin(t.Context()))(t)
	must(client.Append(t.Context(), first, keyline.NewEvent{Key: keyline.Key{Record: "a"}, Type: "t", ID: id}))(t)
	conn := db.Connect()
	pid := conn.PgConn().PID()
	done := make(chan error, 1)
	go func() {
		_, err := client.Append(t.Context(), conn, keyline.NewEvent{Key: keyline.Key{Record: "b"}, Type: "t", ID: id})
		done <- err
	}()
	waitUntilBlocked(t, db.Pool(), pid)
	if err := first.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantError(t, <-done, keyline.ErrConflict, keyline.CodeIdempotencyConflict)
}

func TestSeqOrderIsCommitOrder(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		end  func(context.Context, pgx.Tx) error
		want int64
	}{
		{"commit", func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) }, 3},
		{"rollback", func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) }, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			client := newClient(t, keyline.ClientConfig{})
			event := keyline.NewEvent{Key: keyline.Key{Record: "r"}, Type: "t"}
			slow := must(db.Connect().Begin(t.Context()))(t)
			must(client.Append(t.Context(), slow, event))(t)
			conn := db.Connect()
			pid := conn.PgConn().PID()
			var second keyline.Appended
			done := make(chan error, 1)
			go func() (err error) {
				defer func() { done <- err }()
				second, err = client.Append(t.Context(), conn, event)
				return err
			}()
			waitUntilBlocked(t, db.Pool(), pid)
			must(client.Append(t.Context(), slow, event))(t) // before the one that waits already
			// It delays its own record only.
			other := event
			other.Record = "another"
			must(client.Append(t.Context(), db.Pool(), other))(t)
			if err := tc.end(t.Context(), slow); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if second.Seq != tc.want {
				t.Errorf("the later one to commit has seq %d, want %d", second.Seq, tc.want)
			}
			if unsorted := scalar[int64](t, db.Pool(), `select count(*) from keyline.events a join keyline.events b using (record_id)
				where a.seq < b.seq and a.created_at > b.created_at`); unsorted != 0 {
				t.Errorf("created_at runs against seq in %d places", unsorted)
			}
		})
	}
}

// Whatever appenders do (commit, roll back, go back to a savepoint), what any
// snapshot shows of a record is 1 … n without a gap.
func TestConcurrentAppendsAreGaplessInEverySnapshot(t *testing.T) {
	t.Parallel()
	seed := clock.RandomSeed()
	t.Logf("seed %d", seed)
	random := clock.NewRand(seed)
	db := testdb.New(t)
	client := newClient(t, keyline.ClientConfig{})
	pool := wide(db, 10)
	stop := make(chan struct{})
	reader := make(chan error, 1)
	whole := db.Pool()
	go func() { reader <- readSnapshots(t.Context(), whole, stop) }()
	committed := make([]int, 8)
	errs := all(8, func(i int) error {
		for range 40 {
			n, err := randomTransaction(t.Context(), client, pool, random)
			if err != nil {
				return err
			}
			committed[i] += n
		}
		return nil
	})
	close(stop)
	if err := errors.Join(append(errs, <-reader)...); err != nil {
		t.Fatal(err)
	}
	want := int64(0)
	for _, n := range committed {
		want += int64(n)
	}
	if got := scalar[int64](t, db.Pool(), `select count(*) from keyline.events`); got != want {
		t.Errorf("%d events, want the %d that were committed", got, want)
	}
	if wrong := scalar[int64](t, db.Pool(), `select count(*) from keyline.records r
		where head <> (select count(*) from keyline.events e where e.record_id = r.id)
			or not exists (select from keyline.mailboxes m where m.record_id = r.id)`); wrong != 0 {
		t.Errorf("%d records have another head than events, or no mailbox", wrong)
	}
}

func readSnapshots(ctx context.Context, db keyline.PGX, stop chan struct{}) error {
	for {
		rows, err := db.Query(ctx, `select r.record_key from keyline.records r join keyline.events e on e.record_id = r.id
			group by r.id having min(e.seq) <> 1 or max(e.seq) <> count(*) or max(e.seq) <> r.head`)
		if err != nil {
			return err
		}
		if gaps, err := pgx.CollectRows(rows, pgx.RowTo[string]); err != nil || len(gaps) > 0 {
			return fmt.Errorf("a snapshot shows gaps on records %v (%w)", gaps, err)
		}
		select {
		case <-stop:
			return nil
		default:
		}
	}
}

// randomTransaction appends to one of three records (one, so that it cannot
// deadlock) and returns how many events it committed.
func randomTransaction(ctx context.Context, client *keyline.Client, pool *pgxpool.Pool, random *clock.Rand) (n int, err error) {
	tx, err := pool.Begin(ctx)
	if err != nil {
		return 0, err
	}
	defer func() {
		if rollbackErr := tx.Rollback(context.WithoutCancel(ctx)); rollbackErr != nil && !errors.Is(rollbackErr, pgx.ErrTxClosed) {
			err = errors.Join(err, rollbackErr)
		}
	}()
	event := keyline.NewEvent{Key: keyline.Key{Record: fmt.Sprint("r", random.IntN(3))}, Type: "t"}
	for range 1 + random.IntN(3) {
		inner, err := tx.Begin(ctx) // a savepoint
		if err != nil {
			return 0, err
		}
		batch := slices.Repeat([]keyline.NewEvent{event}, 1+random.IntN(3))
		if _, err := client.AppendMany(ctx, inner, batch); err != nil {
			return 0, err
		}
		if random.IntN(3) == 0 {
			err = inner.Rollback(ctx)
		} else {
			n += len(batch)
			err = inner.Commit(ctx)
		}
		if err != nil {
			return 0, err
		}
	}
	if random.IntN(4) == 0 {
		return 0, tx.Rollback(ctx)
	}
	return n, tx.Commit(ctx)
}

func TestAppendManyOverTheSameRecordsDoesNotDeadlock(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	client := newClient(t, keyline.ClientConfig{})
	pool := wide(db, 6)
	// Usable keys, and events that become their own records by id or idempotency key.
	var events []keyline.NewEvent
	for i := range 10 {
		events = append(events,
			keyline.NewEvent{Key: keyline.Key{Tenant: fmt.Sprint(i % 3), Record: fmt.Sprint("r", i)}, Type: "t"},
			keyline.NewEvent{Type: "t", IdempotencyKey: fmt.Sprint("k", i)},
			keyline.NewEvent{Key: keyline.Key{Tenant: "1"}, Type: "t", IdempotencyKey: fmt.Sprint("k", i)})
	}
	reversed := slices.Clone(events)
	slices.Reverse(reversed)
	for range 15 {
		if err := errors.Join(all(6, func(i int) error {
			batch := events
			if i%2 == 1 {
				batch = reversed
			}
			_, err := client.AppendMany(t.Context(), pool, batch)
			return err
		})...); err != nil {
			t.Fatal(err)
		}
	}
	if n := scalar[int64](t, db.Pool(), `select count(*) from keyline.events`); n != 15*6*10+20 {
		t.Errorf("%d events, want %d", n, 15*6*10+20)
	}
}

func TestAppendManyLocksInOneOrderAndAnswersInTheOther(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	client := newClient(t, keyline.ClientConfig{})
	var events []keyline.NewEvent
	for i, key := range []string{"c", "a", "b", "a", "", "c", "a"} {
		events = append(events, keyline.NewEvent{Key: keyline.Key{Record: key}, Type: fmt.Sprint("t", i), Payload: i})
	}
	results := must(client.AppendMany(t.Context(), db.Pool(), events))(t)
	var seqs []int64
	for i, a := range results {
		seqs = append(seqs, a.Seq)
		stored := must(client.Events(t.Context(), db.Pool(), a.Key, a.Seq, 1))(t)
		if len(stored) != 1 || stored[0].ID != a.ID || stored[0].Type != events[i].Type {
			t.Errorf("result %d is %+v, which is %+v", i, a, stored)
		}
	}
	if want := []int64{1, 1, 1, 2, 1, 2, 3}; !slices.Equal(seqs, want) {
		t.Errorf("seqs %v, want %v", seqs, want)
	}
	// Surrogate ids show the order in which the records were locked.
	order := must(pgx.CollectRows(must(db.Pool().Query(t.Context(),
		`select record_key from keyline.records where record_key in ('a', 'b', 'c') order by id`))(t), pgx.RowTo[string]))(t)
	if !slices.Equal(order, []string{"a", "b", "c"}) {
		t.Errorf("records were locked in the order %v", order)
	}
}

func TestASavepointTakesHeadEventAndWakeStateBack(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	client := newClient(t, keyline.ClientConfig{})
	event := keyline.NewEvent{Key: keyline.Key{Record: "old"}, Type: "t"}
	must(client.Append(t.Context(), db.Pool(), event))(t)
	// As after a hand-back: due later, and wanting another worker's consumer.
	exec(t, db.Pool(), `update keyline.mailboxes set due_at = now() + interval '1 day', wants = '{1}', wants_due_at = now()`)
	state := `select coalesce(string_agg(concat_ws(' ', r.record_key, r.head, r.cursor, m.due_at, m.wants, m.wants_due_at, e.seq), ', ' order by r.id, e.seq), '')
		from keyline.records r left join keyline.mailboxes m on m.record_id = r.id left join keyline.events e on e.record_id = r.id
		where r.record_key <> 'kept'`
	before := scalar[string](t, db.Pool(), state)

	listen, sleeper := db.Connect(), db.Connect()
	exec(t, listen, `listen keyline_wake`)
	exec(t, sleeper, `select pg_advisory_lock(keyline.arm_key())`) // somebody sleeps: appends notify

	tx := must(db.Connect().Begin(t.Context()))(t)
	inner := must(tx.Begin(t.Context()))(t)
	must(client.Append(t.Context(), inner, event))(t)
	must(client.Append(t.Context(), inner, keyline.NewEvent{Key: keyline.Key{Record: "new"}, Type: "t"}))(t)
	if during := scalar[string](t, tx, state); during == before {
		t.Fatal("the appends changed nothing that this test sees")
	}
	if err := inner.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	must(client.Append(t.Context(), tx, keyline.NewEvent{Key: keyline.Key{Record: "kept"}, Type: "t"}))(t)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	kept := scalar[string](t, db.Pool(), `select id::text from keyline.records where record_key = 'kept'`)
	n, err := listen.WaitForNotification(t.Context())
	if err != nil || n.Payload != kept {
		t.Errorf("woken by %+v (%v), want the record that was kept, %s", n, err, kept)
	}
	if after := scalar[string](t, db.Pool(), state); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

func TestAppendMakesTheMailboxDue(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	client := newClient(t, keyline.ClientConfig{})
	event := keyline.NewEvent{Key: keyline.Key{Record: "r"}, Type: "t"}
	append1 := func() { must(client.Append(t.Context(), db.Pool(), event))(t) }
	append1()
	due := `select due_at <= clock_timestamp() and wants is null and wants_due_at is null from keyline.mailboxes`
	if !scalar[bool](t, db.Pool(), due) {
		t.Error("a new record's mailbox is not due")
	}
	for _, state := range []string{
		`due_at = 'infinity', wants = '{1}', wants_due_at = now() + interval '1 hour'`, // after a hand-back to another worker
		`due_at = now() + interval '1 minute'`,                                         // in backoff
		`due_at = now() - interval '1 minute', wants = '{1}', wants_due_at = now()`,
		`due_at = now() - interval '1 minute'`,
	} {
		exec(t, db.Pool(), `update keyline.mailboxes set wants = null, wants_due_at = null`)
		exec(t, db.Pool(), `update keyline.mailboxes set `+state)
		append1()
		if !scalar[bool](t, db.Pool(), due) {
			t.Errorf("an append did not make the mailbox due that had %s", state)
		}
	}
	// A claimed one is its holder's.
	exec(t, db.Pool(), `update keyline.mailboxes set due_at = 'infinity', claimed_by = 1, claimed_at = now(), token = 5`)
	append1()
	if !scalar[bool](t, db.Pool(), `select due_at = 'infinity' and claimed_by = 1 and token = 5 from keyline.mailboxes`) {
		t.Error("an append changed a claimed mailbox")
	}
}

func TestWakeOffAllowsTwoPhaseCommit(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	client := newClient(t, keyline.ClientConfig{})
	listen, sleeper := db.Connect(), db.Connect()
	exec(t, listen, `listen keyline_wake`)
	exec(t, sleeper, `select pg_advisory_lock(keyline.arm_key())`)
	event := keyline.NewEvent{Key: keyline.Key{Record: "silent"}, Type: "t"}
	prepare := func(wake string) error {
		conn := db.Connect()
		exec(t, conn, `begin`)
		exec(t, conn, `set local keyline.wake = `+wake)
		must(client.Append(t.Context(), conn, event))(t)
		_, err := conn.Exec(t.Context(), `prepare transaction '`+db.Name+`'`)
		return err
	}
	var state interface{ SQLState() string }
	if err := prepare("on"); !errors.As(err, &state) || state.SQLState() != "0A000" {
		t.Errorf("PREPARE TRANSACTION with the wake on: %v; this test sees nothing", err)
	}
	if err := prepare("off"); err != nil {
		t.Fatalf("PREPARE TRANSACTION with keyline.wake = off: %v", err)
	}
	exec(t, db.Pool(), `commit prepared '`+db.Name+`'`)
	if n := len(must(client.Events(t.Context(), db.Pool(), event.Key, 0, 0))(t)); n != 1 {
		t.Errorf("%d events, want that of the prepared transaction", n)
	}
	loud := must(client.Append(t.Context(), db.Pool(), keyline.NewEvent{Key: keyline.Key{Record: "loud"}, Type: "t"}))(t)
	n, err := listen.WaitForNotification(t.Context())
	if want := scalar[string](t, db.Pool(), `select id::text from keyline.records where record_key = 'loud'`); err != nil || n.Payload != want {
		t.Errorf("the first notification is %+v (%v), want that of %s, %s", n, err, loud.Key.Record, want)
	}
}

func TestTenThousandEventsInOneCall(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	client := newClient(t, keyline.ClientConfig{})
	events := make([]keyline.NewEvent, 10_000)
	for i := range events {
		events[i] = keyline.NewEvent{Key: keyline.Key{Record: fmt.Sprint("r", i%1000)}, Type: "t", Payload: i, OccurredAt: time.Unix(int64(i), 0)}
	}
	results := must(client.AppendMany(t.Context(), db.Pool(), events))(t)
	for i, a := range results {
		if a.Seq != int64(i/1000+1) {
			t.Fatalf("event %d has seq %d", i, a.Seq)
		}
	}
}
