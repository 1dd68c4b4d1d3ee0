package keyline_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
)

// BenchmarkDelivery drains b.N events with a worker on a real database: allocations and bytes per event are the whole
// worker's, drivers and flushes included, and so is its start. The server is as in tests, without fsync.
func BenchmarkDelivery(b *testing.B) {
	plain := func(context.Context, *keyline.Delivery) error { return nil }
	for _, tc := range []struct {
		name      string
		perRecord int // events
		consumers int
		consumer  keyline.Consumer
	}{
		{"handle", 1, 1, keyline.Consumer{Handle: plain}},
		{"handle/consumers=4", 1, 4, keyline.Consumer{Handle: plain}},
		// Not each of them, which would open the consumer's breaker.
		{"handle/retried=0.1", 1, 1, keyline.Consumer{Retry: quick(time.Millisecond), Handle: func(_ context.Context, d *keyline.Delivery) error {
			if d.Attempt == 1 && strings.HasSuffix(d.Key.Record, "0") {
				return errors.New("once more")
			}
			return nil
		}}},
		{"tx", 1, 1, keyline.Consumer{Effect: keyline.Database(), HandleTx: func(ctx context.Context, tx pgx.Tx, d *keyline.Delivery) error {
			_, err := tx.Exec(ctx, "insert into effects values ($1, $2)", d.Key.Record, d.Seq)
			return err
		}}},
		{"batch", 100, 1, keyline.Consumer{HandleBatch: func(context.Context, []*keyline.Delivery) error { return nil }}},
	} {
		b.Run(tc.name, func(b *testing.B) { benchmarkDelivery(b, tc.perRecord, tc.consumers, tc.consumer) })
	}
}

func benchmarkDelivery(b *testing.B, perRecord, consumers int, c keyline.Consumer) {
	db := testdb.New(b)
	exec(b, db.Pool(), "create table effects (record text, seq bigint, primary key (record, seq))")
	var left atomic.Int64
	done := make(chan struct{})
	left.Store(int64(b.N * consumers))
	// What has been handled is counted, so that no run ends before it has done its work.
	counted := func(n int, err error) error {
		if err == nil && left.Add(-int64(n)) == 0 {
			close(done)
		}
		return err
	}
	c.Types = []string{"*"}
	if c.Effect == (keyline.Effect{}) {
		c.Effect = keyline.None()
	}
	handle, tx, batch := c.Handle, c.HandleTx, c.HandleBatch
	switch {
	case handle != nil:
		c.Handle = func(ctx context.Context, d *keyline.Delivery) error { return counted(1, handle(ctx, d)) }
	case tx != nil:
		c.HandleTx = func(ctx context.Context, q pgx.Tx, d *keyline.Delivery) error { return counted(1, tx(ctx, q, d)) }
	case batch != nil:
		c.HandleBatch = func(ctx context.Context, list []*keyline.Delivery) error { return counted(len(list), batch(ctx, list)) }
	}
	list := make([]keyline.Consumer, consumers)
	for i := range list {
		list[i] = c
		list[i].Name = fmt.Sprintf("consumer-%d", i)
	}
	worker := func() *keyline.Worker {
		return must(keyline.NewWorker(db.Pool(), keyline.Config{Logger: slog.New(slog.DiscardHandler)}, list...))(b)
	}
	run := func(w *keyline.Worker, f func()) {
		if err := w.Start(b.Context()); err != nil {
			b.Fatal(err)
		}
		f()
		if _, err := w.Stop(context.WithoutCancel(b.Context())); err != nil {
			b.Fatal(err)
		}
	}
	// Registers: what is appended later is for them. The walk over all records that this leaves to do is not to be measured.
	run(worker(), func() {
		testdb.Eventually(b, func() bool {
			return scalar[int](b, db.Pool(), "select count(*) from keyline.consumers where sweep is not null") == 0
		}, "the consumers to be swept in")
	})
	client := newClient(b, keyline.ClientConfig{})
	for from := 0; from < b.N; {
		var events []keyline.NewEvent
		for ; from < b.N && len(events) < 1000; from++ {
			events = append(events, keyline.NewEvent{Key: keyline.Key{Record: fmt.Sprint("thing:", from/perRecord)}, Type: "thing.done", Payload: map[string]int{"n": from}})
		}
		must(client.AppendMany(b.Context(), db.Pool(), events))(b)
	}
	exec(b, db.Pool(), "vacuum analyze")
	w := worker()
	b.ReportAllocs()
	b.ResetTimer()
	run(w, func() {
		<-done
		testdb.Eventually(b, func() bool { return scalar[int](b, db.Pool(), "select count(*) from keyline.mailboxes") == 0 }, "all records settle")
		b.StopTimer()
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}
