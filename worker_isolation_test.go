package keyline_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
	"github.com/keylinehq/keyline/supervisor"
)

func TestBlockedHandlerHoldsOnlyItsOwnRecordAndConsumer(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	s, blocked, release := newSeen(), make(chan struct{}), make(chan struct{})
	startWorker(t, db, keyline.Config{},
		keyline.Consumer{Name: "blocks", Types: []string{"*"}, Effect: keyline.None(),
			Handle: func(ctx context.Context, d *keyline.Delivery) error {
				if d.Key.Record == "stuck" && d.Seq == 1 {
					close(blocked)
					select {
					case <-release:
					case <-ctx.Done():
					}
				}
				s.add(d)
				return nil
			}},
		recording(s, "goes_on"),
	)
	appendN(t, db, "stuck", 1)
	<-blocked
	// The other consumer of the same record, events that come while it blocks,
	// and other records with both consumers.
	appendN(t, db, "stuck", 2)
	appendN(t, db, "free:1", 3)
	appendN(t, db, "free:2", 3)
	s.wait(t, 3+2*6)
	if got := s.of("blocks", "stuck"); len(got) != 0 {
		t.Fatalf("the blocked one has seen %d", len(got))
	}
	inOrder(t, s.of("goes_on", "stuck"), 3)
	close(release)
	s.wait(t, 3+2*6+3)
	inOrder(t, s.of("blocks", "stuck"), 3)
	settled(t, db)
}

// A HandleTx that waits for a connection is not running: it takes no place from those that need none, and does not begin
// once its consumer is paused.
func TestBlockedTransactionsHoldUpNobodyWhoNeedsNone(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	const conns, records = 4, 12
	entered, release := make(chan struct{}, records), make(chan struct{})
	pool := db.NewPool(func(c *pgxpool.Config) { c.MaxConns = conns })
	w := startWorkerOn(t, pool, keyline.Config{MaxInFlight: conns + 2},
		keyline.Consumer{Name: "blocks", Types: []string{"blocks"}, Effect: keyline.Database(),
			HandleTx: func(ctx context.Context, _ pgx.Tx, _ *keyline.Delivery) error {
				entered <- struct{}{}
				select {
				case <-release:
				case <-ctx.Done():
				}
				return nil
			}},
		recording(s, "plain", func(c *keyline.Consumer) { c.Types = []string{"plain"} }))
	client := newClient(t, keyline.ClientConfig{})
	for i := range records {
		must(client.Append(t.Context(), db.Pool(), keyline.NewEvent{Key: keyline.Key{Record: fmt.Sprint("blocks:", i)}, Type: "blocks"}))(t)
	}
	for range conns {
		<-entered
	}
	blocks := func() (h supervisor.ConsumerHealth) {
		for _, h = range w.Health().Consumers {
			if h.Name == "blocks" {
				return h
			}
		}
		return h
	}
	testdb.Eventually(t, func() bool { h := blocks(); return h.InFlight == conns && h.Queued == records-conns }, "the others to wait in their queue")
	must(client.Append(t.Context(), db.Pool(), keyline.NewEvent{Key: keyline.Key{Record: "plain"}, Type: "plain"}))(t)
	s.wait(t, 1)
	if err := newOperator(t, db, keyline.RoleOperator).PauseConsumer(t.Context(), "blocks", ""); err != nil {
		t.Fatal(err)
	}
	testdb.Eventually(t, func() bool { return blocks().Queued == 0 }, "the worker to hear of it")
	close(release)
	testdb.Eventually(t, func() bool { return blocks().InFlight == 0 }, "those that ran to end")
	if n := len(entered); n != 0 {
		t.Errorf("%d have begun since", n)
	}
}
