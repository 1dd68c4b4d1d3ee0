package keyline_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/pgdev"
	"github.com/keylinehq/keyline/internal/testdb"
	"github.com/keylinehq/keyline/migrations"
)

// roundTrips counts what is sent to the server: a statement, or several that are sent together.
type roundTrips struct{ n atomic.Int64 }

func (r *roundTrips) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	r.n.Add(1)
	return ctx
}

func (*roundTrips) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (r *roundTrips) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	r.n.Add(1)
	return ctx
}

func (*roundTrips) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (*roundTrips) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// idleMost is how often in a second an idle worker may ask: see decision 18.
const idleMost = 2

// aloneOn starts a server with Keyline's schema for one test, and connects to it: what others do on the server that the tests
// share, such as many notifications at a time, keeps an idle worker awake.
func aloneOn(t *testing.T, tracer pgx.QueryTracer) (watched, plain *pgxpool.Pool) {
	t.Helper()
	server := must(pgdev.Start(t.Context(), pgdev.Options{}))(t)
	t.Cleanup(func() { _ = server.Stop() })
	connect := func(tracer pgx.QueryTracer) *pgxpool.Pool {
		cfg := must(pgxpool.ParseConfig(server.URL("postgres")))(t)
		cfg.ConnConfig.Tracer = tracer
		pool := must(pgxpool.NewWithConfig(t.Context(), cfg))(t)
		t.Cleanup(pool.Close)
		return pool
	}
	watched, plain = connect(tracer), connect(nil)
	conn := must(plain.Acquire(t.Context()))(t)
	defer conn.Release()
	if _, _, err := migrations.Up(t.Context(), conn.Conn(), migrations.DefaultSchema); err != nil {
		t.Fatal(err)
	}
	return watched, plain
}

// TestAnIdleWorkerAsksLittle: what a worker with default settings and nothing
// to do asks the database does not grow. The longer the machine takes, the more it may.
func TestAnIdleWorkerAsksLittle(t *testing.T) {
	t.Parallel()
	asked := &roundTrips{}
	pool, plain := aloneOn(t, asked)
	w, err := keyline.NewWorker(pool, keyline.Config{}, keyline.Consumer{Name: "c", Types: []string{"*"}, Effect: keyline.None(),
		Handle: func(context.Context, *keyline.Delivery) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = w.Stop(context.WithoutCancel(t.Context())) })
	<-w.Ready()
	// Its second renewal and the one two later; by the first it sleeps. A machine that stands still makes
	// another worker of it: then it is looked at anew.
	real := clock.Real()
	var worker, begun, asks int64
	var since time.Duration
	testdb.Eventually(t, func() bool {
		var id, beat int64
		switch err := plain.QueryRow(t.Context(), "select id, beat from keyline.workers where status = 'live'").Scan(&id, &beat); {
		case errors.Is(err, pgx.ErrNoRows):
			return false
		case err != nil:
			t.Fatal(err)
		}
		if id != worker || beat < begun {
			worker, begun, asks, since = id, beat+1, 0, 0
		}
		if beat == begun && since == 0 {
			asks, since = asked.n.Load(), real.Mono()
		}
		return since > 0 && beat >= begun+2
	}, "three renewals of one worker")
	n, took := asked.n.Load()-asks, real.Mono()-since
	t.Logf("%d round trips in %v", n, took)
	if n == 0 {
		t.Error("none is counted: this test says nothing")
	}
	if most := idleMost*took.Seconds() + 4; float64(n) > most { // 4: what falls together at the ends
		t.Errorf("%d round trips in %v, at most %.0f are allowed", n, took, most)
	}
}
