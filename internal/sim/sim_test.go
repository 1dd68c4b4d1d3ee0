package sim

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// drawConsumer draws a consumer's policies.
func drawConsumer(ch Choices, name string) core.Consumer {
	jitter := 0.1
	c := core.Consumer{
		Name: name, Types: [][]string{{"*"}, {"*"}, {"a.*"}, {"b.one", "a.two"}}[ch.IntN(4)],
		Retry:  keylinetype.RetryPolicy{Delays: []time.Duration{0, time.Second, 5 * time.Second}[:ch.IntN(4)], Jitter: &jitter},
		OnDead: keylinetype.Advance, Scope: keylinetype.OneForOne, OnUnsupported: keylinetype.SkipUnsupported,
		Window: []int{1, 1, 2, 4}[ch.IntN(4)], BatchSize: 1,
	}
	if ch.IntN(3) == 0 {
		c.OnDead = keylinetype.Park
	}
	if ch.IntN(4) == 0 {
		c.Scope = keylinetype.AllForOne
	}
	if ch.IntN(3) == 0 {
		c.Versions = []int{1}
		c.OnUnsupported = []keylinetype.Unsupported{keylinetype.SkipUnsupported, keylinetype.DeadLetterUnsupported, keylinetype.WaitUnsupported}[ch.IntN(3)]
	}
	switch ch.IntN(4) {
	case 0:
		c.Transactional = true
	case 1:
		c.BatchSize = 2 + ch.IntN(3)
	}
	return c
}

// drawConfig draws what a run is about.
func drawConfig(ch Choices) Config {
	flag := func() bool { return ch.IntN(3) > 0 }
	cfg := Config{
		Records: 1 + ch.IntN(3), Workers: 1 + ch.IntN(3), Ordering: keylinetype.Independent,
		Faults: flag(), Errors: flag(), Breakers: !flag(), Operators: flag(), Registry: flag(), Subsets: flag(),
		LoadLimit: []int{2, 3, 64}[ch.IntN(3)], CrashBudget: 3,
	}
	cfg.Poison = cfg.Faults && !flag()
	if ch.IntN(3) == 0 {
		cfg.Ordering = keylinetype.Lockstep
	}
	for i := range 1 + ch.IntN(3) {
		cfg.Consumers = append(cfg.Consumers, drawConsumer(ch, fmt.Sprintf("c%d", i+1)))
	}
	for i := range ch.IntN(3) {
		c := drawConsumer(ch, fmt.Sprintf("late%d", i+1))
		if ch.IntN(2) == 0 {
			c.Start = keylinetype.Beginning()
		}
		cfg.Late = append(cfg.Late, c)
	}
	return cfg
}

// TestDeliveryCoreKeepsItsPromises drives real machines through random
// schedules. A failure names the seed; -rapid.checks sets how many.
func TestDeliveryCoreKeepsItsPromises(t *testing.T) {
	var total Stats
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		steps := rapid.IntRange(10, 400).Draw(t, "steps")
		rnd := clock.NewRand(seed)
		cfg := drawConfig(rnd)
		cfg.Steps = steps
		stats, err := Run(cfg, rnd)
		total.add(stats)
		if err != nil {
			t.Fatalf("%v\nconfig %+v", err, cfg)
		}
	})
	t.Logf("%+v", total)
}
