package keyline_test

import (
	"context"
	"testing"
	"time"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
)

// Promise: a drain is over when nothing is due, and not while its own worker has just claimed what
// was due. Retries come due all the time; each drain has a chance to look at the wrong moment.
func TestDrainDoesNotTakeWhatItHasJustClaimedForNothing(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	for n := range 40 {
		w := must(keyline.NewWorker(db.Pool(), keyline.Config{}, keyline.Consumer{
			Name: "dies", Types: []string{"*"}, Effect: keyline.None(), Breaker: keyline.Breaker{Disabled: true},
			Retry:  quick(time.Millisecond, time.Millisecond, time.Millisecond, time.Millisecond, time.Millisecond, time.Millisecond),
			Handle: func(context.Context, *keyline.Delivery) error { return errFails },
		}))(t)
		appendN(t, db, "thing:1", 1)
		must(w.Drain(t.Context(), keyline.DrainOptions{Within: time.Second}))(t)
		if dead := scalar[int](t, db.Pool(), "select count(*) from keyline.dead_letters"); dead != n+1 {
			t.Fatalf("drain %d ended with %d dead letters", n+1, dead)
		}
	}
}
