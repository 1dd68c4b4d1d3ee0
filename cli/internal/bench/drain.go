package bench

import (
	"context"
	"fmt"
	"slices"

	"github.com/keylinehq/keyline/store"
)

// DrainConfig is what is drained.
type DrainConfig struct {
	Config
	Records, Events, Consumers int
}

// Steps is how often Step is called.
func (c DrainConfig) Steps() int { return 1 + 2*c.Runs }

// DrainSettings are what the figures of a drain belong to.
type DrainSettings struct {
	Records   int `json:"records"`
	Events    int `json:"events_per_record"`
	Consumers int `json:"consumers"`
	Settings
}

// Run is a pair of turns.
type Run struct {
	EventsPerS     float64 `json:"events_per_s"`
	BareEventsPerS float64 `json:"bare_events_per_s"`
}

// DrainResult is what was measured. The figures per delivery are the worker's, over
// all runs.
type DrainResult struct {
	Settings              DrainSettings `json:"settings"`
	Runs                  []Run         `json:"runs"`
	RatioMedian           float64       `json:"ratio_median"`
	StatementsPerDelivery float64       `json:"statements_per_delivery"`
	CommitsPerDelivery    float64       `json:"commits_per_delivery"`
	WALBytesPerDelivery   float64       `json:"wal_bytes_per_delivery"`
	Verdict
}

// drain is one benchmark.
type drain struct {
	*stage
	load     workload
	template string
	costs    costs
	result   DrainResult
}

// Drain measures a worker against the bare loop, in turns.
func Drain(ctx context.Context, cfg DrainConfig) (result DrainResult, err error) {
	err = onStage(ctx, cfg.Config, func(s *stage) error {
		d := &drain{stage: s, load: workload{records: cfg.Records, events: cfg.Events, consumers: cfg.Consumers}}
		s.Step("fill the database")
		if d.template, err = s.fill(ctx, d.load, nil); err != nil {
			return err
		}
		d.result.Settings = DrainSettings{cfg.Records, cfg.Events, cfg.Consumers, s.settings}
		for i := range cfg.Runs {
			run, err := d.run(ctx, i)
			if err != nil {
				return fmt.Errorf("run %d: %w", i+1, err)
			}
			d.result.Runs = append(d.result.Runs, run)
		}
		d.conclude()
		result = d.result
		return nil
	})
	return result, err
}

// run is a turn of each; which one goes first changes, so that neither always
// has the warmer machine.
func (d *drain) run(ctx context.Context, i int) (r Run, err error) {
	turns := []func() error{
		func() error {
			d.Step(fmt.Sprintf("run %d of %d: bare loop", i+1, d.Runs))
			return d.turn(ctx, d.template, func(ctx context.Context, url string) error {
				r.BareEventsPerS, err = d.bare(ctx, url)
				return err
			})
		},
		func() error {
			d.Step(fmt.Sprintf("run %d of %d: worker", i+1, d.Runs))
			return d.turn(ctx, d.template, func(ctx context.Context, url string) error {
				m, err := d.drive(ctx, url, d.load, nil)
				if err != nil {
					return err
				}
				r.EventsPerS = m.eventsPerS(d.load)
				d.costs.add(m.costs)
				d.result.add(m.tally)
				return nil
			})
		},
	}
	if i%2 == 1 {
		slices.Reverse(turns)
	}
	for _, turn := range turns {
		if err := turn(); err != nil {
			return r, err
		}
	}
	return r, nil
}

// bare drains a database with the bare loop and returns events per second.
func (d *drain) bare(ctx context.Context, url string) (float64, error) {
	cfg, err := poolConfig(url)
	if err != nil {
		return 0, err
	}
	s, err := store.Open(ctx, store.Config{Pool: cfg, Logger: d.Logger})
	if err != nil {
		return 0, err
	}
	defer s.Close()
	r, err := s.BareDrain(ctx, store.BareOptions{})
	if err != nil {
		return 0, err
	}
	if r.Events != d.load.total() {
		return 0, fmt.Errorf("the bare loop drained %d of %d events", r.Events, d.load.total())
	}
	return r.PerSecond, nil
}

func (d *drain) conclude() {
	r := &d.result
	var ratios []float64
	for _, run := range r.Runs {
		ratios = append(ratios, run.EventsPerS/run.BareEventsPerS)
	}
	r.RatioMedian = rounded(median(ratios), 3)
	for i := range r.Runs {
		r.Runs[i].EventsPerS = rounded(r.Runs[i].EventsPerS, 0)
		r.Runs[i].BareEventsPerS = rounded(r.Runs[i].BareEventsPerS, 0)
	}
	deliveries := float64(d.Runs) * float64(d.load.deliveries())
	r.StatementsPerDelivery = rounded(float64(d.costs.statements)/deliveries, 4)
	r.CommitsPerDelivery = rounded(float64(d.costs.commits)/deliveries, 5)
	r.WALBytesPerDelivery = rounded(float64(d.costs.wal)/deliveries, 1)
}
