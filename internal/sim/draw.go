package sim

import (
	"fmt"
	"time"

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

// Draw draws what a run is about; Steps is left to the caller.
func Draw(ch Choices) Config {
	flag := func() bool { return ch.IntN(3) > 0 }
	cfg := Config{
		Records: 1 + ch.IntN(3), Workers: 1 + ch.IntN(3), Ordering: keylinetype.Independent,
		Faults: flag(), Errors: flag(), Breakers: !flag(), Operators: flag(), Registry: flag(), Subsets: flag(),
		LoadLimit: []int{2, 3, 64}[ch.IntN(3)], CrashBudget: 3,
	}
	cfg.Poison, cfg.Clocks = cfg.Faults && !flag(), !flag()
	if ch.IntN(3) == 0 {
		cfg.Ordering = keylinetype.Lockstep
	}
	for i := range 1 + ch.IntN(3) {
		cfg.Consumers = append(cfg.Consumers, drawConsumer(ch, fmt.Sprintf("c%d", i+1)))
	}
	for i := range ch.IntN(3) {
		c := drawConsumer(ch, fmt.Sprintf("late%d", i+1))
		switch ch.IntN(3) {
		case 0:
			c.Start = keylinetype.Beginning()
		case 1:
			c.Start = keylinetype.At(epochStart.Add(time.Duration(ch.IntN(20)) * time.Second))
		}
		cfg.Late = append(cfg.Late, c)
	}
	return cfg
}

// Seeded is the schedule of a seed: what it is about, and the source of all that happens in it.
func Seeded(seed uint64) (Config, Choices) {
	rnd := clock.NewRand(seed)
	cfg := Draw(rnd)
	cfg.Steps = 10 + rnd.IntN(300)
	return cfg, rnd
}
