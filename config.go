package keyline

import (
	"fmt"
	"log/slog"
	"os"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// The defaults of a worker's settings; docs/configuration.md has the same table.
const (
	DefaultPollInterval           = time.Second
	DefaultLinger                 = 30 * time.Millisecond
	DefaultClaimBatch             = 500
	DefaultMaxRecords             = 3000
	DefaultMaxInFlight            = 256
	DefaultMaxInFlightPerConsumer = 64
	DefaultLease                  = 15 * time.Second
	DefaultShutdownGrace          = 30 * time.Second
	DefaultFlushDelay             = 100 * time.Millisecond
	DefaultCrashBudget            = 3
)

// Config is how a Worker works. The zero value is a good one. A duration of more
// than ten years (3650 days) is one of ten, which is as good as for ever.
type Config struct {
	// Schema is the name of Keyline's schema. Default "keyline".
	Schema string
	// ListenURL is a direct connection to the same database, for LISTEN and
	// session locks. Needed where the pool goes through a pooler in transaction
	// mode; without it the worker then polls.
	//
	// Default: as the pool connects, its BeforeConnect included. For LISTEN that
	// is asked once, at the start: where what it gives does not last (tokens that
	// expire), a later reconnection may fail, and the worker polls.
	ListenURL string
	// Name is what people call this worker; several may share one. Default: the host's name.
	Name string
	// Disabled makes Start return at once with nothing started: a process that
	// embeds a worker can be told not to run it.
	Disabled bool
	// Beside allows this worker beside the one of that name, in one process, on
	// the same database and schema. Without it a second one is refused: it is
	// nearly always an accident.
	Beside string

	// PollInterval is how often an idle worker looks for work that no wake told
	// it of. Default 1 s.
	PollInterval time.Duration
	// Linger is how long a worker without work waits before it goes to sleep,
	// which costs the next appender a NOTIFY. Default 30 ms.
	Linger time.Duration
	// ClaimBatch is the most records that one claim takes; how many it really
	// takes adapts. Default 500.
	ClaimBatch int
	// MaxRecords is the most records that are claimed at a time. Default 3,000.
	MaxRecords int
	// MaxInFlight is the most handlers that run at a time. Default 256. Of HandleTx no more run than there are connections for
	// it: the MaxConns of the pool that the worker was made with, but at least four.
	MaxInFlight int
	// MaxInFlightPerConsumer is the most handlers of one consumer that run at a
	// time, where the consumer does not say. Default 64.
	MaxInFlightPerConsumer int
	// Lease is how long this worker's silence is believed before others take
	// its records. Default 15 s; renewed three times as often.
	Lease time.Duration
	// StaleThreshold is how much longer than its lease another worker's silence
	// is believed. Default 0.
	StaleThreshold time.Duration
	// ShutdownGrace is how long Run lets handlers end after its context has
	// ended; then their contexts are cancelled. Default 30 s.
	ShutdownGrace time.Duration
	// FlushDelay is the longest that an outcome waits to be written with its
	// siblings'. Default 100 ms.
	FlushDelay time.Duration
	// CrashBudget is how many runs of one delivery may end with the whole
	// process before it becomes a dead letter. Default 3.
	CrashBudget int

	// Ordering is the order within a record across consumers, one setting for
	// the installation. Default "": as the database has it (Independent at first).
	Ordering Ordering
	// Middleware wraps every handler, the first outermost. The handler gets the
	// delivery that the innermost one hands on. HandleBatch is wrapped once for
	// the batch: middleware sees, and can replace, its first delivery.
	Middleware []func(Handler) Handler

	// Logger defaults to slog.Default().
	Logger *slog.Logger
	// TracerProvider and MeterProvider default to OpenTelemetry's global ones.
	TracerProvider trace.TracerProvider
	MeterProvider  metric.MeterProvider
}

func (c *Config) setDefaults() {
	orInt(&c.ClaimBatch, DefaultClaimBatch)
	orInt(&c.MaxRecords, DefaultMaxRecords)
	orInt(&c.MaxInFlight, DefaultMaxInFlight)
	orInt(&c.MaxInFlightPerConsumer, DefaultMaxInFlightPerConsumer)
	orInt(&c.CrashBudget, DefaultCrashBudget)
	orDuration(&c.PollInterval, DefaultPollInterval)
	orDuration(&c.Linger, DefaultLinger)
	orDuration(&c.Lease, DefaultLease)
	orDuration(&c.ShutdownGrace, DefaultShutdownGrace)
	orDuration(&c.FlushDelay, DefaultFlushDelay)
	// What says for ever is added to the present, and must not come to be in the past.
	for _, d := range []*time.Duration{&c.PollInterval, &c.Linger, &c.Lease, &c.StaleThreshold, &c.ShutdownGrace, &c.FlushDelay} {
		*d = min(*d, maxRetryDelay)
	}
	if c.Name == "" {
		c.Name = hostName()
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
}

func orInt(v *int, or int) {
	if *v == 0 {
		*v = or
	}
}

func orDuration(v *time.Duration, or time.Duration) {
	if *v == 0 {
		*v = or
	}
}

func hostName() string {
	if name, err := os.Hostname(); err == nil {
		return name
	}
	return "worker"
}

// minLease keeps a lease above what a renewal over a slow connection takes.
const minLease = 500 * time.Millisecond

// validate names the first setting that makes no sense.
func (c Config) validate() error {
	for _, n := range []struct {
		field string
		value int
	}{
		{"ClaimBatch", c.ClaimBatch}, {"MaxRecords", c.MaxRecords}, {"MaxInFlight", c.MaxInFlight},
		{"MaxInFlightPerConsumer", c.MaxInFlightPerConsumer}, {"CrashBudget", c.CrashBudget},
	} {
		if n.value < 1 {
			return wrong("Config."+n.field, "%d is not positive", n.value)
		}
	}
	for _, d := range []struct {
		field string
		value time.Duration
		least time.Duration
	}{
		{"PollInterval", c.PollInterval, time.Millisecond}, {"Linger", c.Linger, 0}, {"Lease", c.Lease, minLease},
		{"StaleThreshold", c.StaleThreshold, 0}, {"ShutdownGrace", c.ShutdownGrace, 0}, {"FlushDelay", c.FlushDelay, 0},
	} {
		if d.value < d.least {
			return wrong("Config."+d.field, "%s is under %s", d.value, d.least)
		}
	}
	for i, m := range c.Middleware {
		if m == nil {
			return wrong(fmt.Sprintf("Config.Middleware[%d]", i), "is nil")
		}
	}
	switch c.Ordering {
	case "", Independent, Lockstep:
	default:
		return wrong("Config.Ordering", "unknown ordering %q", c.Ordering)
	}
	return nil
}
