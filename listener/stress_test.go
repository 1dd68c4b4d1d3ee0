package listener_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/testdb"
)

// The stress of the wakes: a dozen appenders with rollbacks, savepoints, sleeps
// and long transactions, against one worker and against three that do not all
// host the same consumers, so that records are handed back for others; one
// consumer fails now and then. The fallback poll comes once an hour, and so
// does everything else that could make up for a lost wake: if one is lost, the
// test hangs until its limit.
const (
	stressAppenders    = 12
	stressTransactions = 40 // of each
	stressRecords      = 40
	stressLimit        = 2 * time.Minute
)

// booksOf is what handlers were given, kept beside the runtime.
type booksOf struct {
	mu       sync.Mutex
	done     map[string][]int64 // seqs that succeeded, by consumer and record
	failed   map[string]int     // failures, by consumer, record and seq
	retries  int
	total    int
	handled  chan struct{} // rings after each success
	failures []string
}

func (b *booksOf) handle(d *keyline.Delivery, flaky bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	stream := d.Consumer + " " + d.Key.Record
	this := stream + " " + strconv.FormatInt(d.Seq, 10)
	// One in eight fails once, always the same ones of a stream.
	if id := binary.BigEndian.Uint16(d.ID[14:]); flaky && id%8 == 0 && b.failed[this] == 0 {
		b.failed[this]++
		b.retries++
		return errors.New("fails once")
	}
	if want := b.failed[this] + 1; d.Attempt != want || d.Redelivered != (want > 1) {
		b.failures = append(b.failures, fmt.Sprintf("%s: attempt %d (redelivered %v), want %d", this, d.Attempt, d.Redelivered, want))
	}
	b.done[stream] = append(b.done[stream], d.Seq)
	b.total++
	select {
	case b.handled <- struct{}{}:
	default:
	}
	return nil
}

func TestStressNoWakeUpIsLost(t *testing.T) {
	t.Parallel()
	for name, hosts := range map[string][][]string{
		"one worker":    {{"steady", "flaky", "lonely"}},
		"three workers": {{"steady", "flaky"}, {"steady", "flaky"}, {"steady", "lonely"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stress(t, hosts)
		})
	}
}

func stress(t *testing.T, hosts [][]string) {
	seed := clock.RandomSeed()
	if s := os.Getenv("KEYLINE_STRESS_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("appenders' choices: KEYLINE_STRESS_SEED=%d", seed)
	db := testdb.New(t)
	books := &booksOf{done: map[string][]int64{}, failed: map[string]int{}, handled: make(chan struct{}, 1)}
	for i, names := range hosts {
		startStressed(t, db, books, i, names)
	}
	pool := db.NewPool(func(c *pgxpool.Config) { c.MaxConns = stressAppenders + 2 })
	var wg sync.WaitGroup
	for i := range stressAppenders {
		wg.Go(func() {
			a := appender{t: t, pool: pool, rand: clock.NewRand(seed + uint64(i))}
			for range stressTransactions {
				if err := a.transaction(); err != nil {
					t.Errorf("appender %d: %v", i, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	books.check(t, db)
}

func startStressed(t *testing.T, db *testdb.DB, books *booksOf, i int, names []string) {
	t.Helper()
	hosted := map[string]bool{}
	for _, n := range names {
		hosted[n] = true
	}
	var consumers []keyline.Consumer
	for _, name := range []string{"steady", "flaky", "lonely"} {
		c := keyline.Consumer{
			Name: name, Types: []string{"*"}, Effect: keyline.None(),
			Retry: keyline.RetryPolicy{Delays: []time.Duration{20 * time.Millisecond, time.Millisecond}},
			Handle: func(_ context.Context, d *keyline.Delivery) error {
				return books.handle(d, name == "flaky")
			},
		}
		if !hosted[name] {
			c.Excluded = "another worker has it"
		}
		consumers = append(consumers, c)
	}
	w, err := keyline.NewWorker(db.Pool(), keyline.Config{
		Name: "stress", Beside: "stress",
		PollInterval: time.Hour, Lease: time.Hour,
		MaxRecords: 10, // less than there are, so that workers saturate
		Logger:     slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})),
	}, consumers...)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if _, err := w.Stop(ctx); err != nil {
			t.Errorf("stop worker %d: %v", i, err)
		}
	})
}

// check waits for every event that the database has, for every consumer, and
// then looks at the order and at what came twice.
func (b *booksOf) check(t *testing.T, db *testdb.DB) {
	t.Helper()
	heads := map[string]int64{}
	rows, err := db.Pool().Query(t.Context(), "select record_key, head from keyline.records")
	if err != nil {
		t.Fatal(err)
	}
	var key string
	var head, events int64
	if _, err := pgx.ForEachRow(rows, []any{&key, &head}, func() error {
		heads[key] = head
		events += head
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if events < stressAppenders*stressTransactions/4 {
		t.Fatalf("only %d events were committed", events)
	}
	limit := time.NewTimer(stressLimit)
	defer limit.Stop()
	for want := int(events) * 3; b.count() < want; {
		select {
		case <-b.handled:
		case <-limit.C:
			t.Fatalf("%d of %d deliveries: a wake-up was lost\n%s", b.count(), want, stuck(t, db))
		}
	}
	testdb.Eventually(t, func() bool { return stuck(t, db) == "" }, "records do not settle")
	b.mu.Lock()
	defer b.mu.Unlock()
	t.Logf("%d events, %d deliveries, %d retries", events, b.total, b.retries)
	if b.retries == 0 {
		t.Error("nothing was retried")
	}
	for _, f := range b.failures {
		t.Error(f)
	}
	for _, consumer := range []string{"steady", "flaky", "lonely"} {
		for key, head := range heads {
			got := b.done[consumer+" "+key]
			for i, seq := range got {
				if seq != int64(i)+1 {
					t.Errorf("%s on %s: event %d came in place %d of %v", consumer, key, seq, i+1, got)
					break
				}
			}
			if int64(len(got)) != head {
				t.Errorf("%s on %s: %d deliveries of %d events", consumer, key, len(got), head)
			}
		}
	}
}

func (b *booksOf) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.total
}

// stuck describes the mailboxes that are left; "" if none is.
func stuck(t *testing.T, db *testdb.DB) (s string) {
	t.Helper()
	rows, err := db.Pool().Query(t.Context(), `select m::text || ' head ' || r.head || ' cursor ' || r.cursor
		from keyline.mailboxes m join keyline.records r on r.id = m.record_id`)
	if err != nil {
		t.Fatal(err)
	}
	var line string
	if _, err := pgx.ForEachRow(rows, []any{&line}, func() error {
		s += line + "\n"
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return s
}

// appender makes transactions of all kinds, as its seed has it.
type appender struct {
	t    *testing.T
	pool *pgxpool.Pool
	rand *clock.Rand
}

// transaction makes one, and then sometimes leaves the workers in peace for
// long enough to fall asleep.
func (a *appender) transaction() error {
	ctx := a.t.Context()
	tx, err := a.pool.Begin(ctx)
	if err != nil {
		return err
	}
	// After a commit this does nothing.
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if err := a.fill(ctx, tx); err != nil {
		return err
	}
	switch a.rand.IntN(40) {
	case 0: // long: others come and go, workers fall asleep and wait for this
		err = a.sleep(ctx, tx, 1500)
	case 1, 2, 3, 4, 5, 6, 7, 8:
		err = a.sleep(ctx, tx, 80)
	case 9, 10, 11, 12:
		return tx.Rollback(ctx)
	}
	if err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	if a.rand.IntN(3) == 0 {
		return a.sleep(ctx, a.pool, 200)
	}
	return nil
}

// fill appends, with savepoints that are rolled back in between. Records are
// taken in ascending order, so that transactions do not deadlock.
func (a *appender) fill(ctx context.Context, tx pgx.Tx) error {
	record := 0
	for range 1 + a.rand.IntN(3) {
		record += 1 + a.rand.IntN(stressRecords/3)
		if a.rand.IntN(4) > 0 {
			if err := a.append(ctx, tx, record); err != nil {
				return err
			}
			continue
		}
		save, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		if err := a.append(ctx, save, record); err != nil {
			return err
		}
		if a.rand.IntN(2) == 0 {
			err = save.Rollback(ctx)
		} else {
			err = save.Commit(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (a *appender) append(ctx context.Context, tx pgx.Tx, record int) error {
	_, err := tx.Exec(ctx, `select keyline.append($1, 'stress.happened', '{}')`, fmt.Sprintf("stress:%d", record))
	return err
}

// sleep passes up to so many milliseconds on the server.
func (a *appender) sleep(ctx context.Context, on interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}, most int) error {
	_, err := on.Exec(ctx, "select pg_sleep($1::float8 / 1000)", a.rand.IntN(most))
	return err
}
