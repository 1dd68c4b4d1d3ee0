package keyline

import (
	"context"
	"time"

	"github.com/keylinehq/keyline/listener"
	"github.com/keylinehq/keyline/supervisor"
)

// wakes joins the listener to the supervisor's claim loop.
type wakes struct{ *parts }

// Wait implements supervisor.Wakes.
func (w wakes) Wait(ctx context.Context) (supervisor.Wake, error) {
	select {
	case wake := <-w.listener.Wakes():
		if wake.Causes&(listener.More|listener.Reconnected) != 0 { // a change of the registry is among what it may tell of
			w.store.AskSweep()
		}
		return supervisor.Wake{Unbounded: wake.Unbounded, Records: wake.Records, Look: wake.Causes != listener.Notified, Cause: wake.Causes.String()}, nil
	case <-ctx.Done():
		return supervisor.Wake{}, context.Cause(ctx)
	}
}

// Busy implements supervisor.Wakes.
func (w wakes) Busy() { w.listener.Busy() }

// Dry implements supervisor.Wakes.
func (w wakes) Dry(d time.Duration, ok bool) { w.listener.Dry(d, ok) }

// moreTimeout bounds the notification that there is more work here than room.
const moreTimeout = time.Second

// More implements supervisor.Wakes.
func (w wakes) More() {
	ctx, cancel := context.WithTimeout(context.Background(), moreTimeout)
	defer cancel()
	// A lost one costs time: the others poll.
	_ = w.store.Notify(ctx, listener.PayloadMore)
}
