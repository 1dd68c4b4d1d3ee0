package crm_test

import (
	"context"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/examples/crm/crm"
	"github.com/keylinehq/keyline/examples/crm/faults"
	"github.com/keylinehq/keyline/examples/crm/internal/crmtest"
	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/internal/testdb"
	"github.com/keylinehq/keyline/store"
)

// Promise (G1.3, P15): a consumer that is resumed gets what waits for it also on a
// record where a sibling's handler does not come back, whatever the worker has
// heard of the change by other records.
func TestEndToEndAResumedConsumerRunsBesideASiblingThatHangs(t *testing.T) {
	t.Parallel()
	a := recorded(t)
	release := make(chan struct{})
	hang := faults.Rule{Match: faults.Subject("offer"), Consumers: []string{"notification"}, Fail: func(ctx context.Context, _ *keyline.Delivery) error {
		select {
		case <-release:
		case <-ctx.Done():
		}
		return ctx.Err()
	}}
	a.Start(keyline.Config{}, record(a, faults.Inject(a.Consumers(), hang))...)
	defer close(release)
	registry, err := store.Open(t.Context(), store.Config{Pool: a.Pool.Config()})
	if err != nil {
		t.Fatal(err)
	}
	defer registry.Close()
	runs := func(id any) int64 {
		return crmtest.Get[int64](a, `select count(*) from crm.delivered_log where consumer = 'timeline' and mark = 'done' and record_key = 'activity:' || $1::uuid`, id)
	}
	small := ownerless(t)
	testdb.Eventually(t, func() bool { id := small(a); a.Settled(); return runs(id) == 1 }, "the worker to run them all")
	testdb.Eventually(t, func() bool { return registry.SetStatus(t.Context(), "timeline", core.Paused, "test", "to see") == nil }, "timeline to be paused")
	testdb.Eventually(t, func() bool { id := small(a); a.Settled(); return runs(id) == 0 }, "the worker to hear that timeline is paused")

	held := a.Create().ID
	testdb.Eventually(t, func() bool {
		return states(a, held, 1) == "calendar completed, dashboard completed, notification pending, timeline pending" &&
			crmtest.Get[int64](a, `select count(*) from crm.delivered_log where consumer = 'notification' and record_key = 'activity:' || $1::uuid`, held) == 1
	}, "notification to hang, and all else to be written")
	// Other records go on, so that it is by one of their flushes that the worker
	// hears of the change first.
	ctx, cancel := context.WithCancel(t.Context())
	var others errgroup.Group
	for range 3 {
		others.Go(func() error {
			for ctx.Err() == nil {
				if _, err := a.Service.Create(t.Context(), crmtest.By("alice"), crm.NewActivity{Kind: "task", Subject: "Tidy up"}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	testdb.Eventually(t, func() bool { return registry.SetStatus(t.Context(), "timeline", core.Active, "test", "to see") == nil }, "timeline to be resumed")
	heard := crmtest.Get[int64](a, "select count(*) from crm.delivered_log where consumer = 'timeline'")
	testdb.Eventually(t, func() bool {
		return crmtest.Get[int64](a, "select count(*) from crm.delivered_log where consumer = 'timeline'") > heard
	}, "the worker to hear that timeline is resumed")
	cancel()
	if err := others.Wait(); err != nil {
		t.Fatal(err)
	}
	testdb.Eventually(t, func() bool { return runs(held) == 1 }, "timeline to run beside notification, which hangs")
}
