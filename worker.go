package keyline

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/trace"

	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/listener"
	"github.com/keylinehq/keyline/store"
	"github.com/keylinehq/keyline/supervisor"
)

// Worker delivers events to consumers. Any Go program can embed one; several
// processes with workers on one database are a cluster.
type Worker struct {
	pool      *pgxpool.Config
	cfg       Config
	consumers []Consumer
	ready     chan struct{}

	mu      sync.Mutex
	started bool
	parts   *parts // nil before Start and where Disabled; written before ready is closed

	// asked ends when somebody calls Stop; ask ends it.
	asked context.Context
	ask   context.CancelFunc

	stopOnce sync.Once
	status   Status
	stopErr  error
	// life ends when the worker has stopped; hurry ends the grace of a drain that was asked for.
	life       context.Context
	end, hurry context.CancelFunc
	drains     sync.WaitGroup
}

// parts are what a started worker is made of, in the order in which they start.
type parts struct {
	store      *store.Store
	guard      func()
	listener   *listener.Listener
	supervisor *supervisor.Supervisor
	endMetrics func() error
	endSweeps  context.CancelFunc
	sweeps     sync.WaitGroup
}

// Status is a worker's report when it has stopped.
type Status = supervisor.Status

// NewWorker makes a worker of the consumers that this process runs. Nothing is
// connected or started. pool says how to connect: the worker has connections of its own, so that a busy pool
// cannot starve its heartbeat, and as many for HandleTx as the pool's MaxConns.
//
// The error names the field that is wrong.
func NewWorker(pool *pgxpool.Pool, cfg Config, consumers ...Consumer) (*Worker, error) {
	if pool == nil {
		return nil, wrong("pool", "is nil")
	}
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if err := validateConsumers(consumers); err != nil {
		return nil, err
	}
	w := &Worker{pool: pool.Config(), cfg: cfg, consumers: consumers, ready: make(chan struct{}), hurry: func() {}}
	w.life, w.end = context.WithCancel(context.Background())
	w.asked, w.ask = context.WithCancel(context.Background())
	return w, nil
}

// Run starts the worker, waits until ctx ends, an operator has drained it or the schema has been migrated to a version that
// does not serve it, and stops it within the shutdown grace. Its error is Start's or Stop's; that ctx ended is none.
func (w *Worker) Run(ctx context.Context) error {
	if err := w.Start(ctx); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-w.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.cfg.ShutdownGrace)
	defer cancel()
	_, err := w.Stop(grace)
	return err
}

// Ready is closed when the worker has joined the cluster and claims; never where it is Disabled.
func (w *Worker) Ready() <-chan struct{} { return w.ready }

// Start registers the consumers, joins the cluster and begins to deliver. It
// returns when the worker is ready; it then runs until Stop, or until an operator drains it, not until ctx ends. A
// second Start is an error, and so is one after a Stop; a Stop meanwhile ends it.
//
// Errors: ErrConflict where the registry has another definition of a consumer at the same revision, or another worker
// runs in this process and Config.Beside does not name it; one that says what to run where the schema is missing, older
// than this binary, or so new that it does not serve it; ErrUnavailable.
func (w *Worker) Start(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.started {
		return errors.New("keyline: the worker was started before")
	}
	if w.asked.Err() != nil {
		return errors.New("keyline: the worker was stopped before")
	}
	w.started = true
	if w.cfg.Disabled {
		w.cfg.Logger.Info("keyline worker is disabled")
		return nil
	}
	// What the worker does in the background is nobody's request: left in the span that it was started in, every poll would be a part of it.
	ctx, cancel := context.WithCancel(trace.ContextWithSpanContext(ctx, trace.SpanContext{}))
	defer cancel()
	defer context.AfterFunc(w.asked, cancel)() //nolint:contextcheck // whichever of the two ends first
	p := &parts{}
	if err := w.start(ctx, p); err != nil {
		stop, cancel := context.WithCancel(context.WithoutCancel(ctx))
		cancel()
		_, stopErr := p.stop(stop)
		return errors.Join(err, stopErr)
	}
	w.parts = p
	w.startDrains(ctx, p)
	close(w.ready)
	return nil
}

func (w *Worker) start(ctx context.Context, p *parts) error {
	var err error
	p.store, err = store.Open(ctx, store.Config{Pool: w.pool, Schema: w.cfg.Schema, ListenURL: w.cfg.ListenURL,
		Logger: w.cfg.Logger, Local: w.local()})
	if err != nil {
		return fmt.Errorf("keyline: open store: %w", err)
	}
	if p.guard, err = w.guard(ctx, p.store); err != nil {
		return err
	}
	if err := p.store.Register(ctx, w.definitions(), w.cfg.Ordering); err != nil {
		return fmt.Errorf("keyline: register consumers: %w", err)
	}
	run, err := w.runner(p.store)
	if err != nil {
		return err
	}
	if p.supervisor, err = supervisor.New(w.supervision(p, run)); err != nil {
		return err
	}
	if err := w.startListener(ctx, p); err != nil {
		return err
	}
	if err := p.supervisor.Start(ctx); err != nil {
		return err
	}
	w.startSweeps(context.WithoutCancel(ctx), p)
	p.endMetrics, err = w.startMetrics(p)
	return err
}

// local is what this process alone decides about its consumers.
func (w *Worker) local() map[string]store.Local {
	local := map[string]store.Local{}
	for _, c := range w.consumers {
		if d := c.toCore(); d.Hosted {
			local[c.Name] = store.Local{Revision: d.Revision, Window: d.Window, BatchSize: d.BatchSize}
		}
	}
	return local
}

func (w *Worker) definitions() []store.Definition {
	defs := make([]store.Definition, len(w.consumers))
	for i, c := range w.consumers {
		defs[i] = store.Definition{Consumer: c.toCore(), PreviousNames: c.PreviousNames}
	}
	return defs
}

func (w *Worker) runner(s *store.Store) (*runner, error) {
	watch, err := newProcessTelemetry(w.cfg, s.Clock())
	if err != nil {
		return nil, fmt.Errorf("keyline: make metrics: %w", err)
	}
	r := &runner{store: s, clock: s.Clock(), random: clock.NewRand(clock.RandomSeed()).Float64, hosted: map[string]*hosted{}, watch: watch}
	for _, c := range w.consumers {
		if c.runsHere() {
			r.hosted[c.Name] = newHosted(c, w.cfg.Middleware, newConsumerTelemetry(c.Name))
		}
	}
	return r, nil
}

func (w *Worker) startListener(ctx context.Context, p *parts) error {
	var own *pgx.ConnConfig
	if w.cfg.ListenURL == "" {
		own = w.pool.ConnConfig.Copy() // not its string, which knows nothing of what the program has changed since
		if w.pool.BeforeConnect != nil {
			if err := w.pool.BeforeConnect(ctx, own); err != nil {
				return fmt.Errorf("keyline: the pool's BeforeConnect, to listen: %w", err)
			}
		}
	}
	var err error
	p.listener, err = listener.New(listener.Config{
		ListenURL: w.cfg.ListenURL, Connection: own, Channel: p.store.Channel(), ApplicationName: p.store.ApplicationName(),
		Arming:   func() core.Arming { return p.store.NewArming() },
		Notify:   p.store.Notify,
		Hosted:   func() []int32 { return p.supervisor.Hosted() },
		Fallback: w.cfg.PollInterval, Linger: w.cfg.Linger, Logger: w.cfg.Logger,
	})
	if err != nil {
		return err
	}
	return p.listener.Start(ctx)
}

func (w *Worker) supervision(p *parts, run *runner) supervisor.Config {
	cfg := w.cfg
	limits := map[string]supervisor.Limits{}
	names := make([]string, 0, len(w.consumers))
	ahead := supervisor.DefaultLoadLimit // or as many as the largest batch has
	for _, c := range w.consumers {
		if !c.runsHere() {
			continue
		}
		ahead = max(ahead, c.batchSize())
		most := c.MaxInFlight
		if most == 0 {
			most = cfg.MaxInFlightPerConsumer
		}
		limits[c.Name] = supervisor.Limits{MaxInFlight: most, Breaker: c.Breaker}
		names = append(names, c.Name)
	}
	return supervisor.Config{
		Deliveries: p.store, Leases: p.store, Wakes: wakes{p}, Runner: run,
		Worker:    core.Worker{Name: cfg.Name, Host: hostName(), PID: os.Getpid(), Lease: cfg.Lease, Consumers: names},
		Consumers: limits, MaxResident: cfg.MaxRecords, MaxBatch: cfg.ClaimBatch, MaxInFlight: cfg.MaxInFlight, MaxInTx: p.store.TxConns(),
		Lease: cfg.Lease, StaleGrace: cfg.StaleThreshold, Grace: cfg.ShutdownGrace, FlushDelay: cfg.FlushDelay, CrashBudget: cfg.CrashBudget, LoadLimit: ahead,
		Joined: p.store.SetWorker, Fenced: p.store.Fenced, Clock: p.store.Clock(), Log: cfg.Logger,
	}
}

// startSweeps carries out what registry changes leave to be done, whoever made them, and counts what waits where this worker leads.
func (w *Worker) startSweeps(ctx context.Context, p *parts) {
	ctx, p.endSweeps = context.WithCancel(ctx)
	p.sweeps.Go(func() {
		p.store.KeepSweeping(ctx, func() bool { return p.listener.Mode() == listener.Listening })
	})
	p.sweeps.Go(func() {
		for ctx.Err() == nil {
			if _, err := p.store.KeepHealth(ctx); err != nil && ctx.Err() == nil {
				w.cfg.Logger.Warn("keyline: what waits is counted again later", "error", err)
			}
			if clock.Sleep(ctx, p.store.Clock(), store.HealthEvery) != nil {
				return
			}
		}
	})
}

// Stop stops claiming, lets running handlers end until ctx ends, then cancels
// them; hands back the rest without charging an attempt; writes what is to be written last. It may be called
// again, and joins the first call, or the drain that an operator asked for. The error also says it where the worker had ended
// because the schema did not serve it any more. The status says what was left running: of a HandleTx that does not come
// back the transaction is rolled back. A worker that was not started is not started any more.
func (w *Worker) Stop(ctx context.Context) (Status, error) {
	w.ask()
	w.mu.Lock()
	p := w.parts
	w.mu.Unlock()
	if p == nil {
		w.end()
		return Status{}, nil
	}
	defer context.AfterFunc(ctx, w.hurry)()
	status, err := w.halt(ctx, p, nil)
	w.drains.Wait()
	return status, err
}

// halt is the body of the first stop, whoever asked for it. cause is why a worker ends that nobody has asked to; nil: somebody has.
func (w *Worker) halt(ctx context.Context, p *parts, cause error) (Status, error) {
	w.stopOnce.Do(func() {
		defer w.end()
		status, err := p.stop(ctx)
		w.status, w.stopErr = status, errors.Join(cause, err)
	})
	return w.status, w.stopErr
}

// stop ends the parts in the reverse order of their start; the writer last.
func (p *parts) stop(ctx context.Context) (status Status, err error) {
	if p.endMetrics != nil {
		err = p.endMetrics()
	}
	if p.endSweeps != nil {
		p.endSweeps()
		p.sweeps.Wait()
	}
	if p.supervisor != nil {
		var stopErr error
		status, stopErr = p.supervisor.Stop(ctx)
		err = errors.Join(err, stopErr)
	}
	if p.listener != nil {
		farewell, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeGrace)
		err = errors.Join(err, p.listener.Stop(farewell))
		cancel()
	}
	if p.guard != nil {
		p.guard()
	}
	if p.store != nil {
		p.store.Close()
	}
	return status, err
}

// closeGrace bounds a farewell to a server that may not answer.
const closeGrace = 5 * time.Second
