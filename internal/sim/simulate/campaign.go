package main

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/keylinehq/keyline/internal/sim"
)

// campaign is many schedules, run by several goroutines. Which of them runs
// which is chance; what a seed's schedule is, is not.
type campaign struct {
	first uint64
	runs  int
	live  bool // somebody watches

	mu    sync.Mutex
	next  int
	total *report
}

func newCampaign(first uint64, runs int) *campaign {
	return &campaign{first: first, runs: runs, live: terminal(os.Stderr), total: newReport()}
}

// terminal reports whether what is written to f is read by a person.
func terminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// run returns when all schedules have run, or ctx has ended.
func (c *campaign) run(ctx context.Context, parallel int) {
	var wg sync.WaitGroup
	for range parallel {
		wg.Go(func() {
			for ctx.Err() == nil {
				seed, ok := c.take()
				if !ok {
					return
				}
				cfg, ch := sim.Seeded(seed)
				cfg.Quiet = true
				stats, err := sim.Run(cfg, ch)
				c.done(seed, stats, err)
			}
		})
	}
	wg.Wait()
	if c.live {
		fmt.Fprint(os.Stderr, "\r\033[K")
	}
}

func (c *campaign) take() (seed uint64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next == c.runs {
		return 0, false
	}
	c.next++
	return c.first + uint64(c.next-1), true
}

func (c *campaign) done(seed uint64, s sim.Stats, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.total.add(seed, s, err)
	if err != nil {
		fmt.Printf("seed %d: %v\n", seed, err)
	}
	if c.live && c.total.Runs%500 == 0 {
		fmt.Fprintf(os.Stderr, "\r%d of %d, %d broken", c.total.Runs, c.runs, c.total.Violations)
	}
}

func (c *campaign) report() *report { return c.total }
