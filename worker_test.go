package keyline_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
)

// seen records what handlers were given, beside the runtime.
type seen struct {
	mu    sync.Mutex
	list  map[string][]keyline.Delivery // by consumer and record
	total int
	ring  chan struct{}
}

func newSeen() *seen {
	return &seen{list: map[string][]keyline.Delivery{}, ring: make(chan struct{}, 1)}
}

func (s *seen) add(d *keyline.Delivery) {
	s.mu.Lock()
	key := d.Consumer + " " + d.Tenant + "/" + d.Key.Record
	s.list[key] = append(s.list[key], *d)
	s.total++
	s.mu.Unlock()
	select {
	case s.ring <- struct{}{}:
	default:
	}
}

func (s *seen) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total
}

func (s *seen) of(consumer, record string) []keyline.Delivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]keyline.Delivery(nil), s.list[consumer+" /"+record]...)
}

// wait waits until n deliveries were seen.
func (s *seen) wait(t *testing.T, n int) {
	t.Helper()
	limit := time.After(60 * time.Second)
	for s.count() < n {
		select {
		case <-s.ring:
		case <-limit:
			t.Fatalf("%d of %d deliveries", s.count(), n)
		}
	}
}

func startWorker(t *testing.T, db *testdb.DB, cfg keyline.Config, consumers ...keyline.Consumer) *keyline.Worker {
	t.Helper()
	return startWorkerOn(t, db.Pool(), cfg, consumers...)
}

func startWorkerOn(t *testing.T, pool *pgxpool.Pool, cfg keyline.Config, consumers ...keyline.Consumer) *keyline.Worker {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	w, err := keyline.NewWorker(pool, cfg, consumers...)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if _, err := w.Stop(ctx); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return w
}

// recording is a consumer that records what it gets and is content.
func recording(s *seen, name string, change ...func(*keyline.Consumer)) keyline.Consumer {
	c := keyline.Consumer{Name: name, Types: []string{"*"}, Effect: keyline.None(),
		Handle: func(_ context.Context, d *keyline.Delivery) error { s.add(d); return nil }}
	for _, f := range change {
		f(&c)
	}
	return c
}

// quick is a retry policy for tests: as many runs as delays plus one.
func quick(delays ...time.Duration) keyline.RetryPolicy {
	return keyline.RetryPolicy{Delays: append([]time.Duration{}, delays...)}
}

func appendN(t *testing.T, db *testdb.DB, record string, n int) {
	t.Helper()
	client, err := keyline.NewClient(keyline.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if _, err := client.Append(t.Context(), db.Pool(), keyline.NewEvent{
			Key: keyline.Key{Record: record}, Type: "thing.done", Payload: map[string]int{"n": i},
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// settled waits until no record has work.
func settled(t *testing.T, db *testdb.DB) {
	t.Helper()
	testdb.Eventually(t, func() bool {
		var n int
		if err := db.Pool().QueryRow(t.Context(), "select count(*) from keyline.mailboxes").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n == 0
	}, "all records settle")
}

func inOrder(t *testing.T, list []keyline.Delivery, n int) {
	t.Helper()
	if len(list) != n {
		t.Fatalf("%d deliveries, want %d", len(list), n)
	}
	for i, d := range list {
		if d.Seq != int64(i+1) || d.Attempt != 1 || d.Redelivered {
			t.Fatalf("delivery %d is seq %d, attempt %d, redelivered %v", i, d.Seq, d.Attempt, d.Redelivered)
		}
	}
}

func TestWorkerDeliversEveryEventInOrderToEveryConsumer(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	if _, err := db.Pool().Exec(t.Context(), "create table effects (record text, seq bigint, primary key (record, seq))"); err != nil {
		t.Fatal(err)
	}
	s := newSeen()
	const records, events = 5, 20
	for i := range records {
		appendN(t, db, fmt.Sprintf("thing:%d", i), events/2)
	}
	startWorker(t, db, keyline.Config{},
		keyline.Consumer{Name: "plain", Types: []string{"*"}, Effect: keyline.None(), Start: keyline.Beginning(),
			Handle: func(_ context.Context, d *keyline.Delivery) error { s.add(d); return nil }},
		keyline.Consumer{Name: "tx", Types: []string{"thing.*"}, Effect: keyline.Database(), Start: keyline.Beginning(),
			HandleTx: func(ctx context.Context, tx pgx.Tx, d *keyline.Delivery) error {
				s.add(d)
				_, err := tx.Exec(ctx, "insert into effects values ($1, $2)", d.Key.Record, d.Seq)
				return err
			}},
		keyline.Consumer{Name: "batch", Types: []string{"*"}, Effect: keyline.None(), Start: keyline.Beginning(), BatchSize: 4,
			HandleBatch: func(_ context.Context, list []*keyline.Delivery) error {
				for _, d := range list {
					s.add(d)
				}
				return nil
			}},
		keyline.Consumer{Name: "other", Types: []string{"other.*"}, Effect: keyline.None(),
			Handle: func(_ context.Context, d *keyline.Delivery) error { t.Errorf("not its type: %+v", d); return nil }},
	)
	for i := range records {
		appendN(t, db, fmt.Sprintf("thing:%d", i), events/2)
	}
	s.wait(t, 3*records*events)
	settled(t, db)
	for i := range records {
		for _, c := range []string{"plain", "tx", "batch"} {
			inOrder(t, s.of(c, fmt.Sprintf("thing:%d", i)), events)
		}
	}
	var effects int
	if err := db.Pool().QueryRow(t.Context(), "select count(*) from effects").Scan(&effects); err != nil {
		t.Fatal(err)
	}
	if effects != records*events {
		t.Fatalf("%d effects", effects)
	}
}
