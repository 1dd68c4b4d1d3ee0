package keyline_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
)

// within wants f to return in time.
func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatalf("%s does not return", what)
	}
}

// Promise: a handler that does not come back, whatever it holds, keeps no worker from stopping, and the record only until the lease has
// ended.
func TestStopEndsThoughAHandlerDoesNot(t *testing.T) {
	t.Parallel()
	for name, stuck := range map[string]func(c *keyline.Consumer, begun, release chan struct{}){
		"Handle": func(c *keyline.Consumer, begun, release chan struct{}) {
			c.Handle = func(context.Context, *keyline.Delivery) error { close(begun); <-release; return nil }
		},
		"HandleTx": func(c *keyline.Consumer, begun, release chan struct{}) {
			c.HandleTx = func(context.Context, pgx.Tx, *keyline.Delivery) error { close(begun); <-release; return nil }
		},
		"HandleTx in a statement": func(c *keyline.Consumer, begun, release chan struct{}) {
			c.HandleTx = func(_ context.Context, tx pgx.Tx, _ *keyline.Delivery) error {
				close(begun)
				_, err := tx.Exec(context.Background(), "select pg_sleep(3600)")
				<-release
				return err
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			begun, release, returned := make(chan struct{}), make(chan struct{}), make(chan struct{})
			c := keyline.Consumer{Name: "c", Types: []string{"*"}, Effect: keyline.Database()}
			stuck(&c, begun, release)
			w := startWorker(t, db, keyline.Config{Lease: shortLease, Middleware: []func(keyline.Handler) keyline.Handler{
				func(next keyline.Handler) keyline.Handler {
					return func(ctx context.Context, d *keyline.Delivery) error { defer close(returned); return next(ctx, d) }
				}}}, c)
			appendN(t, db, "thing:1", 1)
			<-begun
			within(t, "Stop", func() {
				grace, cancel := context.WithTimeout(context.Background(), time.Millisecond)
				defer cancel()
				status, err := w.Stop(grace)
				if err != nil || len(status.StillRunning) != 1 || status.StillRunning[0].Name != "c" || !status.Left {
					t.Errorf("%+v, %v", status, err)
				}
			})
			s := newSeen()
			other := recording(s, "c", func(c *keyline.Consumer) { c.Effect = keyline.Database() })
			if c.HandleTx != nil {
				handle := other.Handle
				other.Handle, other.HandleTx = nil, func(ctx context.Context, _ pgx.Tx, d *keyline.Delivery) error { return handle(ctx, d) }
			}
			startWorker(t, db, keyline.Config{Lease: shortLease}, other)
			s.wait(t, 1)
			settled(t, db)
			if n := scalar[int](t, db.Pool(), "select count(*) from keyline.failures"); n != 0 {
				t.Errorf("%d failures", n)
			}
			close(release)
			<-returned
			if s.count() != 1 {
				t.Errorf("delivered %d times", s.count())
			}
		})
	}
}

// Promise: a Stop that comes before Start, or while it goes on, is not lost.
func TestAStopBeforeOrDuringStartCounts(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	w := must(keyline.NewWorker(db.Pool(), keyline.Config{}, recording(newSeen(), "c")))(t)
	for range 2 {
		if status, err := w.Stop(t.Context()); err != nil || status.Completed != 0 {
			t.Errorf("%+v, %v", status, err)
		}
	}
	<-w.Done()
	if err := w.Start(t.Context()); err == nil {
		t.Error("it starts after it was stopped")
	}
	// A server that takes connections and says nothing.
	var lc net.ListenConfig
	silent := must(lc.Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	defer func() { _ = silent.Close() }()
	taken := make(chan net.Conn, 10)
	go func() {
		defer close(taken)
		for {
			conn, err := silent.Accept()
			if err != nil {
				return
			}
			taken <- conn
		}
	}()
	pool := must(pgxpool.New(t.Context(), "postgres://nobody@"+silent.Addr().String()+"/none?sslmode=disable"))(t)
	defer pool.Close()
	w = must(keyline.NewWorker(pool, keyline.Config{}, recording(newSeen(), "c")))(t)
	started := make(chan error, 1)
	go func() { started <- w.Start(context.Background()) }()
	conn := <-taken
	defer func() { _ = conn.Close() }()
	within(t, "Stop", func() {
		if _, err := w.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	})
	within(t, "Start", func() {
		if err := <-started; err == nil {
			t.Error("it has started")
		}
	})
	<-w.Done()
}
