package demo

import (
	"context"
	"time"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/examples/crm/crm"
	"github.com/keylinehq/keyline/examples/crm/faults"
	"github.com/keylinehq/keyline/examples/crm/traffic"
	"github.com/keylinehq/keyline/internal/clock"
)

// What is shortened for the show: nobody watches a lease of 15 s run out.
const (
	lease        = 2 * time.Second
	pollInterval = 500 * time.Millisecond
	// providerTime is how long the pretended provider takes for a notification:
	// without it, handlers end so fast that hardly ever a claim is held.
	providerTime = 20 * time.Millisecond
	// transientRuns is how many runs of a flaky delivery fail.
	transientRuns = 2
)

// retryDelays are the pauses before the second and the third run; the failure
// of the third makes a dead letter.
func retryDelays() []time.Duration {
	return []time.Duration{300 * time.Millisecond, 600 * time.Millisecond}
}

// The consumers that something happens to.
const (
	flakyConsumer  = "calendar"
	poisonConsumer = "notification"
)

const createdType = "activity.created"

// load is the application's traffic.
func load(seed uint64) traffic.Config {
	return traffic.Config{Clients: 6, Activities: 60, Organizations: 3, Pause: 60 * time.Millisecond, Flaky: 2, Poison: 1, Seed: seed}
}

// rules are what goes wrong in the handlers: an event that passes at the third
// run, one that never does, and a provider that takes its time.
func rules(c clock.Clock) []faults.Rule {
	never := func(context.Context, *keyline.Delivery) error { return faults.ErrPoison }
	slowly := func(ctx context.Context, _ *keyline.Delivery) error { return clock.Sleep(ctx, c, providerTime) }
	return []faults.Rule{
		faults.Transient(faults.All(faults.Type(createdType), faults.Subject(traffic.Flaky)), transientRuns, flakyConsumer),
		{Match: faults.All(faults.Type(createdType), faults.Subject(traffic.Poison)), Consumers: []string{poisonConsumer}, Fail: never},
		{Consumers: []string{poisonConsumer}, Fail: slowly},
	}
}

// poisoned is how many deliveries must become dead letters.
const poisoned = 1

// consumers are the application's, with the retries of the show.
func consumers(deps crm.Deps) []keyline.Consumer {
	list := crm.Consumers(deps)
	for i := range list {
		list[i].Retry = keyline.RetryPolicy{Delays: retryDelays()}
	}
	return list
}
