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
	"github.com/keylinehq/keyline/internal/testdb"
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

// TestAnIdleWorkerAsksLittle: what a worker with default settings and nothing
// to do asks the database does not grow. The longer the machine takes, the more it may.
func TestAnIdleWorkerAsksLittle(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	asked := &roundTrips{}
	pool := db.NewPool(func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = asked })
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
		switch err := db.Pool().QueryRow(t.Context(), "select id, beat from "+db.Schema+".workers where status = 'live'").Scan(&id, &beat); {
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
