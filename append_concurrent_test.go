package keyline_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

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
			go func() {
				var err error
				second, err = client.Append(t.Context(), conn, event)
				done <- err
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

// A session plans its statements once, perhaps while the tables are empty and known to be: what it does
// later must not read all of what has been appended meanwhile.
func TestManyAppendsInOneTransactionReadOnlyWhatTheyAreAbout(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	const n = 3000
	conn := db.Connect()
	for _, sql := range []string{"vacuum analyze keyline.records", "vacuum analyze keyline.events", "vacuum analyze keyline.mailboxes"} {
		must(conn.Exec(t.Context(), sql))(t)
	}
	for name, key := range map[string]string{"with idempotency keys": "'k' || i", "without": "null"} {
		t.Run(name, func(t *testing.T) {
			tx := must(db.Connect().Begin(t.Context()))(t) // a session of its own, with plans and counts of its own
			defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
			must(tx.Exec(t.Context(), `select keyline.append('r' || i / 10, 't', '{}', idempotency_key => `+key+`) from generate_series(1, $1::integer) i`, n))(t)
			rows := must(tx.Query(t.Context(), `select relname, seq_tup_read, coalesce(idx_tup_fetch, 0) from pg_stat_xact_user_tables
				where schemaname = 'keyline' and relname in ('records', 'events', 'mailboxes')`))(t)
			tables := 0
			var table string
			var scanned, fetched int64
			must(pgx.ForEachRow(rows, []any{&table, &scanned, &fetched}, func() error {
				tables++
				if scanned > 0 || fetched > 4*n {
					t.Errorf("%s: %d rows read by scans, %d by indexes, for %d appends", table, scanned, fetched, n)
				}
				return nil
			}))(t)
			if tables != 3 {
				t.Errorf("%d tables are looked at", tables)
			}
		})
	}
}
