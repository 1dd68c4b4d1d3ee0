package keyline_test

import (
	"context"
	"testing"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
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
