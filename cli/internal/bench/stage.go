package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/cli/internal/scratch"
	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/pgdev"
	"github.com/keylinehq/keyline/migrations"
	"github.com/keylinehq/keyline/store"
)

// Config is where a benchmark runs, and how often.
type Config struct {
	Runs int
	// Durable makes the embedded server wait for its disk, as one that keeps
	// data does. A server that DatabaseURL names is as it is.
	Durable     bool
	DatabaseURL string
	Logger      *slog.Logger
	// Step is told what begins; nil: nobody is.
	Step func(what string)
}

// Settings are what the figures belong to.
type Settings struct {
	Runs int `json:"runs"`
	// Scale is what the numbers of records and events were multiplied by; absent where they are given.
	Scale      float64 `json:"scale,omitempty"`
	PostgreSQL string  `json:"postgresql"`
	Embedded   bool    `json:"embedded"`
	Fsync      string  `json:"fsync"`
	// SynchronousCommit and Fsync are the server's.
	SynchronousCommit string `json:"synchronous_commit"`
	CPUs              int    `json:"cpus"`
	Go                string `json:"go"`
	// StatementsFrom says who counted the statements: "pg_stat_statements", or
	// "client" where the server has no such extension, or where they are counted
	// from a moment within a session's life on (see scale).
	StatementsFrom string `json:"statements_from"`
	// LoadBefore is the machine's load average before the first turn, null where
	// it does not say. Above a fraction of the CPUs, others were at work: the bare loop's
	// work is Postgres's and the worker's is half its own, so they do not suffer
	// alike, and the ratio means little.
	LoadBefore *float64 `json:"load_before"`
}

// Busy says whether others were at work on the machine.
func (s Settings) Busy() bool { return s.LoadBefore != nil && *s.LoadBefore > float64(s.CPUs)/2 }

// workload is what is to be delivered. Its events are there before a turn begins.
type workload struct {
	records, events, consumers int
	// window is the consumers' (keyline.Consumer.Window); 0: its default.
	window int
}

func (l workload) total() int64      { return int64(l.records) * int64(l.events) }
func (l workload) deliveries() int64 { return l.total() * int64(l.consumers) }

// recordPrefix begins the records' keys; their number follows.
const recordPrefix = "bench:"

// stage is the server that turns take place on.
type stage struct {
	Config
	server     *scratch.Server
	statements bool // the server counts them
	settings   Settings
}

// onStage opens the server, lets f measure, and takes everything away again.
func onStage(ctx context.Context, cfg Config, f func(*stage) error) (err error) {
	if cfg.Step == nil {
		cfg.Step = func(string) {}
	}
	server, err := scratch.Open(ctx, cfg.DatabaseURL, pgdev.Options{Durable: cfg.Durable})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close(context.WithoutCancel(ctx))) }()
	s := &stage{Config: cfg, server: server, settings: Settings{
		Runs: cfg.Runs, LoadBefore: loadAverage(), CPUs: runtime.GOMAXPROCS(0), Go: runtime.Version(), Embedded: server.Embedded(), StatementsFrom: "client"}}
	if server.Embedded() { // somebody's server is not ours to restart
		if s.statements, err = server.Preload(ctx, "pg_stat_statements"); err != nil {
			return err
		}
	}
	if s.statements {
		s.settings.StatementsFrom = "pg_stat_statements"
	}
	return f(s)
}

// fill makes a database with a workload in it, of which every turn gets a copy,
// and returns its name. more may add to it.
func (s *stage) fill(ctx context.Context, l workload, more func(context.Context, *pgx.Conn) error) (template string, err error) {
	name, url, err := s.server.Database(ctx, "keyline_bench_template", "")
	if err != nil {
		return "", err
	}
	err = onConnection(ctx, url, func(conn *pgx.Conn) error {
		_, _, err := migrations.Up(ctx, conn, migrations.DefaultSchema)
		return err
	})
	if err != nil {
		return "", err
	}
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return "", err
	}
	defer pool.Close()
	// A worker registers the consumers as a program's would.
	empty := l
	empty.records, empty.events = 0, 0
	w, err := keyline.NewWorker(pool, keyline.Config{Logger: s.Logger}, consumers(newTally(empty), l)...)
	if err != nil {
		return "", err
	}
	if err := w.Start(ctx); err != nil {
		return "", err
	}
	if _, err := w.Stop(ctx); err != nil {
		return "", err
	}
	st, err := store.Open(ctx, store.Config{Pool: pool.Config(), Logger: s.Logger})
	if err != nil {
		return "", err
	}
	defer st.Close()
	// Registering leaves a walk over all records to do, once. Done here it finds none;
	// left to the first turn it would be measured as if it came with every drain.
	for more := true; more; {
		if more, err = st.Sweep(ctx); err != nil {
			return "", err
		}
	}
	if err := st.BareSeed(ctx, recordPrefix, l.records, l.events); err != nil {
		return "", err
	}
	return name, onConnection(ctx, url, func(conn *pgx.Conn) error { return s.finish(ctx, conn, more) })
}

// finish brings the filled tables to rest and reads what the figures belong to.
func (s *stage) finish(ctx context.Context, conn *pgx.Conn, more func(context.Context, *pgx.Conn) error) error {
	if more != nil {
		if err := more(ctx, conn); err != nil {
			return err
		}
	}
	if _, err := conn.Exec(ctx, "vacuum (analyze)"); err != nil {
		return fmt.Errorf("vacuum: %w", err)
	}
	return conn.QueryRow(ctx, sqlSettings).Scan(&s.settings.PostgreSQL, &s.settings.Fsync, &s.settings.SynchronousCommit)
}

// turn lets f have a fresh copy of a filled database.
func (s *stage) turn(ctx context.Context, template string, f func(ctx context.Context, url string) error) (err error) {
	name, url, err := s.server.Database(ctx, "keyline_bench", template)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.server.Drop(context.WithoutCancel(ctx), name)) }()
	if err := s.settleDown(ctx, url); err != nil {
		return err
	}
	return f(ctx, url)
}

// settleDown lets nobody pay for what was done before: a copy leaves the server
// with pages to write, and this process with garbage.
func (s *stage) settleDown(ctx context.Context, url string) error {
	runtime.GC()
	return onConnection(ctx, url, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "checkpoint")
		if err != nil && !s.server.Embedded() {
			return nil //nolint:nilerr // a privilege that a role on somebody's server need not have
		}
		return err
	})
}

// measured is what a worker's turn has shown.
type measured struct {
	tally *tally
	took  time.Duration
	costs costs
}

func (m measured) eventsPerS(l workload) float64 { return float64(l.total()) / m.took.Seconds() }

// drive drains a database with a worker. Its time begins before it has connected
// and ends when the last record has settled. beside, if not nil, runs meanwhile,
// until its context ends.
func (s *stage) drive(ctx context.Context, url string, l workload, beside func(context.Context, *tally)) (measured, error) {
	cfg, err := poolConfig(url)
	if err != nil {
		return measured{}, err
	}
	sent := &counter{}
	if !s.statements {
		cfg.ConnConfig.Tracer = sent
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return measured{}, err
	}
	defer pool.Close()
	t := newTally(l)
	w, err := keyline.NewWorker(pool, keyline.Config{Logger: s.Logger, TracerProvider: noop.NewTracerProvider()}, consumers(t, l)...)
	if err != nil {
		return measured{}, err
	}
	meter, err := s.meter(ctx, url)
	if err != nil {
		return measured{}, err
	}
	defer meter.close(ctx)
	c := clock.Real()
	began := c.Mono()
	if err := w.Start(ctx); err != nil {
		return measured{}, err
	}
	stopBeside := s.besides(ctx, t, beside)
	err = await(ctx, c, t, meter)
	took := c.Mono() - began
	stopBeside()
	if _, stopErr := w.Stop(ctx); err == nil {
		err = stopErr
	}
	if err != nil {
		return measured{}, err
	}
	cost, err := meter.read(ctx, c)
	if err != nil {
		return measured{}, err
	}
	cost.statements += sent.now().statements
	if what := t.firstUnexpected.Load(); what != nil {
		return measured{}, fmt.Errorf("%d deliveries that nobody has appended, the first %s", t.unknown.Load(), *what)
	}
	return measured{t, took, cost}, nil
}

// besides runs beside until the function it returns is called, which waits for it.
func (*stage) besides(ctx context.Context, t *tally, beside func(context.Context, *tally)) (stop func()) {
	if beside == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		beside(ctx, t)
	}()
	return func() {
		cancel()
		<-ended
	}
}

// await waits until all is delivered and then until all has settled. Nobody
// looks at the tables before that: it would be measured too.
func await(ctx context.Context, c clock.Clock, t *tally, m *meter) error {
	tick := c.NewTicker(settledPoll)
	defer tick.Stop()
	for delivered := t.done; ; {
		select {
		case <-delivered:
			delivered = nil
		case <-tick.C():
			if delivered != nil {
				continue
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if settled, err := m.settled(ctx); settled || err != nil {
			return err
		}
	}
}

// consumers do nothing but check what they are given.
func consumers(t *tally, l workload) []keyline.Consumer {
	list := make([]keyline.Consumer, l.consumers)
	for i := range list {
		list[i] = keyline.Consumer{
			Name: fmt.Sprintf("bench-%d", i), Types: []string{"*"}, Effect: keyline.None(), Window: l.window,
			Handle: func(_ context.Context, d *keyline.Delivery) error {
				t.handle(i, d)
				return nil
			},
		}
	}
	return list
}

// poolConfig is the same for all turns.
func poolConfig(url string) (*pgxpool.Config, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = 4
	return cfg, nil
}

// connect makes a connection of the benchmark's own, which is none of what is measured.
func connect(ctx context.Context, url string) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	cfg.RuntimeParams["application_name"] = "keyline bench"
	return pgx.ConnectConfig(ctx, cfg)
}

func onConnection(ctx context.Context, url string, f func(*pgx.Conn) error) error {
	conn, err := connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return f(conn)
}

// idleTimeout bounds how long a server may take to let sessions end.
const idleTimeout = 10 * time.Second
