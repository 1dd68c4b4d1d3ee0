package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/keylinehq/keyline/cli/internal/scratch"
	"github.com/keylinehq/keyline/examples/crm/crm"
	"github.com/keylinehq/keyline/examples/crm/fakeprovider"
	"github.com/keylinehq/keyline/examples/crm/recorder"
	"github.com/keylinehq/keyline/examples/crm/traffic"
	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/pgdev"
	"github.com/keylinehq/keyline/migrations"
)

// Config is how the show goes.
type Config struct {
	// Duration is how long there is traffic. After it, everything settles.
	Duration time.Duration
	// Workers are the processes to begin with.
	Workers int
	// Seed decides the traffic.
	Seed uint64
	// Sabotage breaks delivery on purpose, so that the checks can be seen to
	// notice: "", "drop" or "reorder".
	Sabotage string
	// DatabaseURL names a server to make a database on; "": an embedded one.
	DatabaseURL string
	// Program is the command line of a worker process; see Work.
	Program []string
	// Show is where the show is told; nil: nowhere.
	Show io.Writer
	// Clock defaults to the real one.
	Clock clock.Clock
}

// Consumer is what became of one consumer's deliveries.
type Consumer struct {
	Delivered   int64 `json:"delivered"`
	Redelivered int64 `json:"redelivered"`
	Dead        int64 `json:"dead"`
}

// Result is the verdict, measured.
type Result struct {
	OK              bool                `json:"ok"`
	Seed            uint64              `json:"seed"`
	Appended        int64               `json:"appended"`
	Expected        int64               `json:"expected"`
	Delivered       int64               `json:"delivered"`
	Consumers       map[string]Consumer `json:"consumers"`
	OrderViolations int64               `json:"order_violations"`
	Lost            int64               `json:"lost"`
	Redelivered     int64               `json:"redelivered"`
	DeadLetters     int64               `json:"dead_letters"`
	WorkersStarted  int                 `json:"workers_started"`
	WorkersKilled   int                 `json:"workers_killed"`
	ClaimsRecovered int                 `json:"claims_recovered"`
	LeaseMS         int64               `json:"lease_ms"`
	P50MS           float64             `json:"p50_ms"`
	P99MS           float64             `json:"p99_ms"`

	// Problems are what keeps OK from being true, in words.
	Problems []string `json:"-"`
}

// settleLimit bounds the wait for everything to settle after the traffic.
const settleLimit = 60 * time.Second

// Run runs the show and returns the verdict. An error means that there is none.
func Run(ctx context.Context, cfg Config) (result Result, err error) {
	err = open(ctx, cfg, func(ctx context.Context, d *demo, _ *scratch.Server) (err error) {
		d.show.opening(cfg)
		result, err = d.run(ctx)
		return err
	})
	return result, err
}

// open calls f with a database that has all that is needed, and a cluster
// without workers yet; whoever is left of them is stopped.
func open(ctx context.Context, cfg Config, f func(context.Context, *demo, *scratch.Server) error) (err error) {
	if cfg.Show == nil {
		cfg.Show = io.Discard
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.Real()
	}
	d := &demo{Config: cfg, began: cfg.Clock.Mono()}
	d.show = newShow(cfg.Show, func() time.Duration { return cfg.Clock.Mono() - d.began })
	server, err := scratch.Open(ctx, cfg.DatabaseURL, pgdev.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close(context.WithoutCancel(ctx))) }()
	_, url, err := server.Database(ctx, "keyline_demo", "")
	if err != nil {
		return err
	}
	poolConfig, err := pgxpool.ParseConfig(url)
	if err != nil {
		return err
	}
	poolConfig.MaxConns = 12
	if d.pool, err = pgxpool.NewWithConfig(ctx, poolConfig); err != nil {
		return err
	}
	defer d.pool.Close()
	if err := d.prepare(ctx); err != nil {
		return err
	}
	d.cluster = &cluster{program: cfg.Program, url: url, sabotage: cfg.Sabotage}
	defer func() {
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*shutdownGrace)
		defer cancel()
		_ = d.cluster.stop(grace) // whoever is left, after an error
	}()
	return f(ctx, d, server)
}

// demo is one run of the show.
type demo struct {
	Config
	began   time.Duration
	show    *show
	pool    *pgxpool.Pool
	cluster *cluster
	traffic traffic.Report
	kill    killed
}

// prepare installs Keyline, the application and the recorder.
func (d *demo) prepare(ctx context.Context) error {
	conn, err := d.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if _, _, err := migrations.Up(ctx, conn.Conn(), migrations.DefaultSchema); err != nil {
		return err
	}
	if err := crm.Migrate(ctx, conn.Conn()); err != nil {
		return err
	}
	if _, err := fakeprovider.New(ctx, d.pool); err != nil {
		return err
	}
	return recorder.Install(ctx, d.pool)
}

// begin starts the workers, and returns the application for them.
func (d *demo) begin(ctx context.Context) (*crm.Service, error) {
	client, err := crm.NewClient()
	if err != nil {
		return nil, err
	}
	if err := client.RegisterEventTypes(ctx, d.pool); err != nil {
		return nil, err
	}
	return crm.NewService(d.pool, client), d.startWorkers(ctx)
}

func (d *demo) run(ctx context.Context) (Result, error) {
	service, err := d.begin(ctx)
	if err != nil {
		return Result{}, err
	}
	watching, stopWatching := context.WithCancel(ctx)
	var watch errgroup.Group
	watch.Go(func() error { return d.watch(watching) })
	err = d.act(ctx, service)
	settled := err == nil && d.settle(ctx, settleLimit)
	stopWatching()
	if watchErr := watch.Wait(); err == nil {
		err = watchErr
	}
	if err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return Result{}, err
	}
	grace, cancel := context.WithTimeout(ctx, 2*shutdownGrace)
	defer cancel()
	stopped := d.cluster.stop(grace)
	r, err := d.verdict(ctx, settled, stopped)
	if err == nil {
		d.show.verdict(r)
	}
	return r, err
}

// startWorkers starts the workers and waits until they and their consumers are
// there, so that the traffic is all theirs.
func (d *demo) startWorkers(ctx context.Context) error {
	var started []*process
	for range d.Workers {
		p, err := d.cluster.start()
		if err != nil {
			return err
		}
		started = append(started, p)
	}
	for _, p := range started {
		if err := p.await(ctx); err != nil {
			return err
		}
		d.show.say("worker %s is ready (pid %d)", p.name, p.cmd.Process.Pid)
	}
	limited, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	return d.until(limited, func(ctx context.Context) (bool, error) {
		var ready bool
		err := d.pool.QueryRow(ctx, sqlConsumersReady).Scan(&ready)
		return ready, err
	})
}

// act is the show's middle: traffic, and half-way a kill.
func (d *demo) act(ctx context.Context, service *crm.Service) error {
	parts, ctx := errgroup.WithContext(ctx) // what fails ends the other
	parts.Go(func() error {
		playing, end := context.WithTimeout(ctx, d.Duration)
		defer end()
		var err error
		d.traffic, err = traffic.Run(playing, service, load(d.Seed))
		return err
	})
	parts.Go(func() error {
		if err := clock.Sleep(ctx, d.Clock, d.Duration/2); err != nil {
			return err
		}
		return d.killHolder(ctx)
	})
	err := parts.Wait()
	if err == nil {
		d.show.say("traffic ends: %d events appended; waiting until everything has settled", d.traffic.Appended)
	}
	return err
}

// settle waits until no record has work; false if that takes longer than limit.
// What the database does not answer is asked again: it may just have been restarted.
func (d *demo) settle(ctx context.Context, limit time.Duration) bool {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := d.until(limited, func(ctx context.Context) (bool, error) {
		if err := d.cluster.casualties(); err != nil {
			return false, err
		}
		var done bool
		err := d.pool.QueryRow(ctx, sqlSettled).Scan(&done)
		return err == nil && done, nil
	})
	return err == nil
}

// pollPause is how often until looks.
const pollPause = 20 * time.Millisecond

// until waits until cond holds.
func (d *demo) until(ctx context.Context, cond func(context.Context) (bool, error)) error {
	for {
		if ok, err := cond(ctx); ok || err != nil {
			return err
		}
		if err := clock.Sleep(ctx, d.Clock, pollPause); err != nil {
			return fmt.Errorf("wait: %w", err)
		}
	}
}
