package supervisor

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/keylinehq/keyline/actors"
	"github.com/keylinehq/keyline/actors/delivery"
	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/core"
)

// The defaults; docs/ has the same table.
const (
	defaultMaxResident = 3000
	defaultMaxBatch    = 500
	defaultInFlight    = 256
	defaultMaxInFlight = 64
	defaultLease       = 15 * time.Second
	defaultGrace       = 30 * time.Second
	defaultCancelWait  = 2 * time.Second
	defaultNewsEvery   = 250 * time.Millisecond
	defaultYield       = time.Second
)

// DefaultLoadLimit is how many events are read ahead above each position of a record.
const DefaultLoadLimit = 64

// Config is what a Supervisor needs. Fields without a default are required.
type Config struct {
	Deliveries core.Deliveries
	Leases     core.Leases
	Wakes      Wakes
	Runner     actors.Runner

	// Worker is registered with every incarnation; ID is filled in, and Lease
	// is the field below.
	Worker core.Worker
	// Consumers are the limits of the hosted consumers, by name.
	Consumers map[string]Limits

	// MaxResident is how many records may be claimed at once. Default: 3,000.
	MaxResident int
	// MaxBatch is how many records one claim takes at most. Default: 500.
	MaxBatch int
	// MaxInFlight is how many handlers may run at once. Default: 256.
	MaxInFlight int
	// MaxInTx is how many of them may run in a transaction: as many as there are connections for it. Default: MaxInFlight.
	MaxInTx int
	// Lease is how long this worker's silence is believed. Default: 15 s.
	Lease time.Duration
	// Renew is how often the lease is renewed. Default: a third of Lease.
	Renew time.Duration
	// StaleGrace is the silence of other workers that is forgiven beyond their
	// lease. Default: none.
	StaleGrace time.Duration
	// Grace is how long Stop waits for running handlers before it cancels them,
	// if its context does not end sooner. Default: 30 s.
	Grace time.Duration
	// CancelWait is how long Stop waits for cancelled handlers. Default: 2 s.
	CancelWait time.Duration
	// NewsEvery is how often resident records are asked after. Default: 250 ms.
	NewsEvery time.Duration
	// SuspectYield is how long a suspect record has the worker's one suspect
	// place for itself. Default: 1 s.
	SuspectYield time.Duration
	// FlushDelay, CrashBudget and LoadLimit are the machines' settings, as in delivery.Options.
	FlushDelay  time.Duration
	CrashBudget int
	LoadLimit   int

	// Pairs is shared by the workers of a process that use the same database
	// and schema. Default: one of its own.
	Pairs *actors.Pairs
	// Machine makes the records' machines. Default: delivery.New.
	Machine actors.NewMachine
	// Joined is called with each new incarnation's id before it claims
	// anything; Fenced when it has given up its claims. They must not block.
	Joined, Fenced func(worker int64)
	// Clock defaults to the system's. Where due times are the database's, it
	// should show the database's time.
	Clock clock.Clock
	// Random draws from [0, 1). Default: seeded by the system.
	Random func() float64
	// Log defaults to slog.Default.
	Log *slog.Logger
}

func (c *Config) setDefaults() {
	number := func(n *int, def int) {
		if *n == 0 {
			*n = def
		}
	}
	span := func(d *time.Duration, def time.Duration) {
		if *d == 0 {
			*d = def
		}
	}
	number(&c.MaxResident, defaultMaxResident)
	number(&c.MaxBatch, defaultMaxBatch)
	number(&c.MaxInFlight, defaultInFlight)
	number(&c.MaxInTx, c.MaxInFlight)
	number(&c.LoadLimit, DefaultLoadLimit)
	span(&c.Lease, defaultLease)
	span(&c.Renew, c.Lease/3)
	span(&c.Grace, defaultGrace)
	span(&c.CancelWait, defaultCancelWait)
	span(&c.NewsEvery, defaultNewsEvery)
	span(&c.SuspectYield, defaultYield)
	c.Worker.Lease = c.Lease
	if c.Pairs == nil {
		c.Pairs = actors.NewPairs()
	}
	if c.Machine == nil {
		c.Machine = func(r *core.Registry, l core.Loaded, o delivery.Options) (actors.Machine, []delivery.Effect) {
			return delivery.New(r, l, o)
		}
	}
	nothing := func(int64) {}
	if c.Joined == nil {
		c.Joined = nothing
	}
	if c.Fenced == nil {
		c.Fenced = nothing
	}
	if c.Clock == nil {
		c.Clock = clock.Real()
	}
	if c.Random == nil {
		c.Random = clock.NewRand(clock.RandomSeed()).Float64
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
}

func (c *Config) validate() error {
	var errs []error
	check := func(field string, ok bool, want string) {
		if !ok {
			errs = append(errs, fmt.Errorf("supervisor: %s %s", field, want))
		}
	}
	check("Deliveries", c.Deliveries != nil, "is required")
	check("Leases", c.Leases != nil, "is required")
	check("Wakes", c.Wakes != nil, "is required")
	check("Runner", c.Runner != nil, "is required")
	check("MaxResident", c.MaxResident > 0, "must be positive")
	check("MaxBatch", c.MaxBatch > 0, "must be positive")
	check("MaxInFlight", c.MaxInFlight > 0, "must be positive")
	check("MaxInTx", c.MaxInTx > 0, "must be positive")
	check("LoadLimit", c.LoadLimit > 0, "must be positive")
	check("Lease", c.Lease > 0, "must be positive")
	check("Renew", c.Renew > 0 && c.Renew <= c.Lease/2, "must be positive and at most half of Lease")
	for name, d := range map[string]time.Duration{
		"StaleGrace": c.StaleGrace, "Grace": c.Grace, "CancelWait": c.CancelWait,
		"SuspectYield": c.SuspectYield, "FlushDelay": c.FlushDelay,
	} {
		check(name, d >= 0, "must not be negative")
	}
	check("NewsEvery", c.NewsEvery > 0, "must be positive")
	return errors.Join(errs...)
}
