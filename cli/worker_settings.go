package cli

import (
	"time"

	"github.com/spf13/pflag"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/cmd/keyline/telemetry"
)

// workerSettings are the settings of a worker as flags. A test holds them to
// keyline.Config, field by field.
type workerSettings struct {
	enabled                bool
	name                   string
	listenURL              string
	pollInterval           time.Duration
	linger                 time.Duration
	claimBatch             int
	maxRecords             int
	maxInFlight            int
	maxInFlightPerConsumer int
	lease                  time.Duration
	staleThreshold         time.Duration
	shutdownGrace          time.Duration
	flushDelay             time.Duration
	crashBudget            int
	ordering               string

	only         []string
	http         string
	debugHTTP    string
	traceCatchUp float64

	// What one call is about, and no setting.
	once   bool
	within time.Duration
}

func (s *workerSettings) onceFlags(f *pflag.FlagSet) {
	f.BoolVar(&s.once, "once", false, "deliver what is due, and end")
	f.DurationVar(&s.within, "within", 0, "with --once: also wait for what comes due within this time")
}

func (s *workerSettings) flags(f *pflag.FlagSet) {
	f.BoolVar(&s.enabled, "enabled", true, "false: start nothing, and wait for the end")
	f.StringVar(&s.name, "name", "", "what people call this worker (default: the host's name)")
	f.StringVar(&s.listenURL, "listen-url", "", "direct connection for LISTEN and session locks, where --database-url goes through a transaction pooler")
	f.DurationVar(&s.pollInterval, "poll-interval", keyline.DefaultPollInterval, "how often to look for work that no wake told of")
	f.DurationVar(&s.linger, "linger", keyline.DefaultLinger, "how long to wait without work before going to sleep")
	f.IntVar(&s.claimBatch, "claim-batch", keyline.DefaultClaimBatch, "most records in one claim; how many it takes adapts")
	f.IntVar(&s.maxRecords, "max-records", keyline.DefaultMaxRecords, "most records claimed at a time")
	f.IntVar(&s.maxInFlight, "max-in-flight", keyline.DefaultMaxInFlight, "most handlers running at a time")
	f.IntVar(&s.maxInFlightPerConsumer, "max-in-flight-per-consumer", keyline.DefaultMaxInFlightPerConsumer, "most handlers of one consumer, where it does not say")
	f.DurationVar(&s.lease, "lease", keyline.DefaultLease, "how long this worker's silence is believed")
	f.DurationVar(&s.staleThreshold, "stale-threshold", 0, "how much longer than its lease another worker's silence is believed")
	f.DurationVar(&s.shutdownGrace, "shutdown-grace", keyline.DefaultShutdownGrace, "how long handlers may go on after a stop")
	f.DurationVar(&s.flushDelay, "flush-delay", keyline.DefaultFlushDelay, "longest that an outcome waits for its siblings'")
	f.IntVar(&s.crashBudget, "crash-budget", keyline.DefaultCrashBudget, "runs of one delivery that may end with the process")
	f.StringVar(&s.ordering, "ordering", "", "independent or lockstep, for the installation (default: as the database has it)")
	f.StringSliceVar(&s.only, "only", nil, "names of the consumers to run here (default: all that this program has)")
	f.StringVar(&s.http, "http", "", "where to serve /livez, /readyz and /metrics, for example :9464; without a host: on loopback (default: nowhere)")
	f.StringVar(&s.debugHTTP, "debug-http", "", "where to serve profiles at /debug/pprof/, apart from --http; without a host: on loopback (default: nowhere)")
	f.Float64Var(&s.traceCatchUp, "trace-catch-up", telemetry.DefaultCatchUp, "share of the deliveries of old events to a new consumer that is traced, from 0 to 1")
}

// config is the settings as the library takes them; logger and telemetry are
// the caller's to add.
func (s *workerSettings) config(schema string) keyline.Config {
	return keyline.Config{
		Schema: schema, ListenURL: s.listenURL, Name: s.name, Disabled: !s.enabled,
		PollInterval: s.pollInterval, Linger: s.linger, ClaimBatch: s.claimBatch, MaxRecords: s.maxRecords,
		MaxInFlight: s.maxInFlight, MaxInFlightPerConsumer: s.maxInFlightPerConsumer,
		Lease: s.lease, StaleThreshold: s.staleThreshold, ShutdownGrace: s.shutdownGrace, FlushDelay: s.flushDelay,
		CrashBudget: s.crashBudget, Ordering: keyline.Ordering(s.ordering),
	}
}
