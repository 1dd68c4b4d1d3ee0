package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/cli/internal/scratch"
	"github.com/keylinehq/keyline/internal/pgdev"
)

// Config is what is drained, and how often.
type Config struct {
	Records, Events, Consumers, Runs int
	// Durable makes the embedded server wait for its disk, as one that keeps
	// data does. A server that DatabaseURL names is as it is.
	Durable     bool
	DatabaseURL string
	Logger      *slog.Logger
	// Step is told what begins; nil: nobody is. There are Steps of them.
	Step func(what string)
}

// MaxEvents bounds the events of a record: the check keeps one bit for each.
const MaxEvents = 64

// Steps is how often Step is called.
func (c Config) Steps() int { return 1 + 2*c.Runs }

// Settings are what the figures belong to.
type Settings struct {
	Records    int    `json:"records"`
	Events     int    `json:"events_per_record"`
	Consumers  int    `json:"consumers"`
	Runs       int    `json:"runs"`
	PostgreSQL string `json:"postgresql"`
	Embedded   bool   `json:"embedded"`
	Fsync      string `json:"fsync"`
	// SynchronousCommit and Fsync are the server's.
	SynchronousCommit string `json:"synchronous_commit"`
	CPUs              int    `json:"cpus"`
	Go                string `json:"go"`
	// StatementsFrom says who counted the statements: "pg_stat_statements", or
	// "client" where the server has no such extension.
	StatementsFrom string `json:"statements_from"`
	// LoadBefore is the machine's load average before the first turn, null where
	// it does not say. Above a fraction of the CPUs, others were at work: the bare loop's
	// work is Postgres's and the worker's is half its own, so they do not suffer
	// alike, and the ratio means little.
	LoadBefore *float64 `json:"load_before"`
}

// Busy says whether others were at work on the machine.
func (s Settings) Busy() bool { return s.LoadBefore != nil && *s.LoadBefore > float64(s.CPUs)/2 }

// Run is a pair of turns.
type Run struct {
	EventsPerS     float64 `json:"events_per_s"`
	BareEventsPerS float64 `json:"bare_events_per_s"`
}

// Result is what was measured. The figures per delivery are the worker's, over
// all runs.
type Result struct {
	Settings              Settings `json:"settings"`
	Runs                  []Run    `json:"runs"`
	RatioMedian           float64  `json:"ratio_median"`
	StatementsPerDelivery float64  `json:"statements_per_delivery"`
	CommitsPerDelivery    float64  `json:"commits_per_delivery"`
	WALBytesPerDelivery   float64  `json:"wal_bytes_per_delivery"`
	OrderViolations       int64    `json:"order_violations"`
	Lost                  int64    `json:"lost"`
	Duplicates            int64    `json:"duplicates"`
}

// OK says whether the worker has delivered everything, once and in order.
func (r Result) OK() bool { return r.OrderViolations+r.Lost+r.Duplicates == 0 }

// drain is one benchmark.
type drain struct {
	Config
	server     *scratch.Server
	template   string
	statements bool // the server counts them
	costs      costs
	result     Result
}

// Drain runs the benchmark.
func Drain(ctx context.Context, cfg Config) (result Result, err error) {
	if cfg.Step == nil {
		cfg.Step = func(string) {}
	}
	server, err := scratch.Open(ctx, cfg.DatabaseURL, pgdev.Options{Durable: cfg.Durable})
	if err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, server.Close(context.WithoutCancel(ctx))) }()
	d := &drain{Config: cfg, server: server}
	d.result.Settings.LoadBefore = loadAverage()
	cfg.Step("fill the database")
	if err := d.prepare(ctx); err != nil {
		return Result{}, err
	}
	for i := range cfg.Runs {
		run, err := d.run(ctx, i)
		if err != nil {
			return Result{}, fmt.Errorf("run %d: %w", i+1, err)
		}
		d.result.Runs = append(d.result.Runs, run)
	}
	d.conclude()
	return d.result, nil
}

// run is a turn of each; which one goes first changes, so that neither always
// has the warmer machine.
func (d *drain) run(ctx context.Context, i int) (r Run, err error) {
	turns := []func() error{
		func() error {
			d.Step(fmt.Sprintf("run %d of %d: bare loop", i+1, d.Runs))
			return d.turn(ctx, func(ctx context.Context, url string) error {
				r.BareEventsPerS, err = d.bare(ctx, url)
				return err
			})
		},
		func() error {
			d.Step(fmt.Sprintf("run %d of %d: worker", i+1, d.Runs))
			return d.turn(ctx, func(ctx context.Context, url string) error {
				r.EventsPerS, err = d.worker(ctx, url)
				return err
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

// turn lets f drain a fresh copy of the filled database.
func (d *drain) turn(ctx context.Context, f func(ctx context.Context, url string) error) (err error) {
	name, url, err := d.server.Database(ctx, "keyline_bench", d.template)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.server.Drop(context.WithoutCancel(ctx), name)) }()
	if err := d.settleDown(ctx, url); err != nil {
		return err
	}
	return f(ctx, url)
}

// settleDown lets nobody pay for what was done before: a copy leaves the server
// with pages to write, and this process with garbage.
func (d *drain) settleDown(ctx context.Context, url string) error {
	runtime.GC()
	return onConnection(ctx, url, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "checkpoint")
		if err != nil && !d.server.Embedded() {
			return nil //nolint:nilerr // a privilege that a role on somebody's server need not have
		}
		return err
	})
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
	deliveries := float64(d.Runs) * float64(d.deliveries())
	r.StatementsPerDelivery = rounded(float64(d.costs.statements)/deliveries, 4)
	r.CommitsPerDelivery = rounded(float64(d.costs.commits)/deliveries, 5)
	r.WALBytesPerDelivery = rounded(float64(d.costs.wal)/deliveries, 1)
}

func (d *drain) deliveries() int64 { return int64(d.Records) * int64(d.Events) * int64(d.Consumers) }

func onConnection(ctx context.Context, url string, f func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return f(conn)
}

// idleTimeout bounds how long a server may take to let sessions end.
const idleTimeout = 10 * time.Second
