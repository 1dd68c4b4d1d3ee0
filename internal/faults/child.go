package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/examples/crm/recorder"
	"github.com/keylinehq/keyline/internal/clock"
)

// childEnv holds a worker's spec and turns this program into that worker.
const childEnv = "KEYLINE_FAULTS_CHILD"

// spec is what a worker process is told.
type spec struct {
	URL       string // of the worker
	ListenURL string
	Direct    string // of the recorder, which no fault touches
	Name      string
	Consumers []string // see consumers
	Config    keyline.Config
	Breaker   keyline.Breaker
	Begin     bool // consumers start at the beginning
	Window    int
	Attempts  int // 0: many
	Delay     time.Duration
	Define    map[string]definition // what some of the consumers have of their own
	Pool      int32                 // connections for HandleTx; 0: as many as handlers could want
	Procs     int                   // GOMAXPROCS; 0: as it is
	Stay      bool                  // the process goes on when its worker has stopped
	Ends      bool                  // the process ends when its worker has been drained
	Wrap      []string              `json:"-"` // a command to run the worker under
}

// definition is how a consumer differs from the others; zero fields do not.
type definition struct {
	Types         []string
	Start         keyline.Start
	PreviousNames []string
	Revision      int
	Batch, Window int
	Park          bool
	MaxInFlight   int
	Attempts      int
}

// apply is how the suite says it.
func (d definition) apply(c *keyline.Consumer) {
	if d.Types != nil {
		c.Types = d.Types
	}
	if d.Start.Kind != "" {
		c.Start = d.Start
	}
	if d.Batch != 0 {
		c.BatchSize = d.Batch
	}
	if d.Window != 0 {
		c.Window = d.Window
	}
	if d.Park {
		c.OnDead = keyline.Park
	}
	if d.Attempts != 0 {
		c.Retry.Delays = c.Retry.Delays[:d.Attempts-1]
	}
	c.PreviousNames, c.Revision, c.MaxInFlight = d.PreviousNames, d.Revision, d.MaxInFlight
}

// child is the worker process.
func child(text string) int {
	var s spec
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	if err := work(s); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func work(s spec) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	asked := make(chan struct{})
	go func() {
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			asked <- struct{}{}
		}
		os.Exit(4) // the suite is gone
	}()
	if s.Procs != 0 {
		runtime.GOMAXPROCS(s.Procs)
	}
	stop := make(chan os.Signal, 4)
	signal.Notify(stop, syscall.SIGTERM)
	cfg, err := pgxpool.ParseConfig(s.URL)
	if err != nil {
		return err
	}
	cfg.MaxConns = 32 // as many HandleTx transactions at once
	if s.Pool != 0 {
		cfg.MaxConns = s.Pool
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer pool.Close()
	if cfg, err = pgxpool.ParseConfig(s.Direct); err != nil {
		return err
	}
	cfg.MaxConns = 16
	direct, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer direct.Close()
	s.Config.Name, s.Config.ListenURL = s.Name, s.ListenURL
	s.Config.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	w, err := keyline.NewWorker(pool, s.Config, recorder.Record(s.consumers(direct), direct, fmt.Sprintf("%s/%d", s.Name, os.Getpid()))...)
	if err != nil {
		return err
	}
	go func() {
		for range asked {
			f, err := json.Marshal(figures{runtime.NumGoroutine(), w.Health(), w.Readiness()})
			fmt.Println("figures "+string(f), err)
		}
	}()
	if err := w.Start(ctx); err != nil {
		return err
	}
	fmt.Println("ready")
	select {
	case <-stop:
	case <-w.Done():
		if s.Ends {
			return nil
		}
		<-stop
	}
	grace := s.Config.ShutdownGrace
	if grace == 0 {
		grace = keyline.DefaultShutdownGrace
	}
	bounded, end := context.WithTimeout(ctx, grace)
	defer end()
	go func() { // a second SIGTERM: stop again, it joins the first
		<-stop
		_, err := w.Stop(bounded)
		fmt.Println("stopped again", err)
	}()
	status, err := w.Stop(bounded)
	fmt.Printf("stopped running=%d left=%v\n", len(status.StillRunning), status.Left)
	if s.Stay {
		select {}
	}
	return err
}

// figures is what a worker process says of itself when it is asked.
type figures struct {
	Goroutines int
	Health     keyline.Health
	Readiness  keyline.Readiness
}

// consumers makes the named ones: tx… by HandleTx, batch… by HandleBatch, the others by Handle.
func (s spec) consumers(direct *pgxpool.Pool) []keyline.Consumer {
	delay := s.Delay
	if delay == 0 {
		delay = 100 * time.Millisecond
	}
	attempts := s.Attempts
	if attempts == 0 {
		attempts = 1000
	}
	delays := make([]time.Duration, attempts-1)
	for i := range delays {
		delays[i] = delay
	}
	var list []keyline.Consumer
	for _, name := range s.Consumers {
		p := player{name, direct}
		c := keyline.Consumer{Name: name, Types: []string{"*"}, Effect: keyline.None(), Retry: keyline.RetryPolicy{Delays: delays}, Breaker: s.Breaker, Window: s.Window}
		if s.Breaker == (keyline.Breaker{}) {
			c.Breaker.Disabled = true
		}
		if s.Begin {
			c.Start = keyline.Beginning()
		}
		switch {
		case len(name) >= 2 && name[:2] == "tx":
			c.Effect = keyline.Database()
			c.HandleTx = func(ctx context.Context, tx pgx.Tx, d *keyline.Delivery) error { return p.play(ctx, tx, d) }
		case len(name) >= 5 && name[:5] == "batch":
			c.BatchSize = 5
			c.HandleBatch = p.playBatch
		default:
			c.Handle = func(ctx context.Context, d *keyline.Delivery) error { return p.play(ctx, nil, d) }
		}
		if d, ok := s.Define[name]; ok {
			d.apply(&c)
		}
		list = append(list, c)
	}
	return list
}

// player does what an event's payload says.
type player struct {
	consumer string
	direct   *pgxpool.Pool
}

type script struct {
	Only  string // the consumer that this is for; empty: all
	Do    string
	Gate  string
	MS    int
	Deaf  bool // do not heed the context
	First int  // fail the first so many attempts
	Spin  int  // keep a processor busy for so many milliseconds
	Hog   int  // the same the first time, without a place where the scheduler could interrupt it
	Last  bool // in a batch: the others come before this one
}

// playBatch plays a batch in its order, or the first one last where that says so.
func (p player) playBatch(ctx context.Context, batch []*keyline.Delivery) error {
	var s script
	if err := json.Unmarshal(batch[0].Payload, &s); err != nil {
		return err
	}
	if s.Last {
		batch = append(slices.Clone(batch[1:]), batch[0])
	}
	for _, d := range batch {
		if err := p.play(ctx, nil, d); err != nil {
			return err
		}
	}
	return nil
}

func (p player) play(ctx context.Context, tx pgx.Tx, d *keyline.Delivery) error {
	var s script
	if err := json.Unmarshal(d.Payload, &s); err != nil {
		return err
	}
	if s.Only != "" && s.Only != p.consumer {
		return nil
	}
	if s.Deaf {
		ctx = context.WithoutCancel(ctx)
	}
	if s.MS > 0 {
		if err := clock.Sleep(ctx, clock.Real(), time.Duration(s.MS)*time.Millisecond); err != nil {
			return err
		}
	}
	if s.Spin > 0 {
		spin(time.Duration(s.Spin) * time.Millisecond)
	}
	if s.Hog > 0 && !d.Redelivered {
		hog(time.Duration(s.Hog) * time.Millisecond)
	}
	if s.Gate != "" {
		if err := p.await(ctx, s.Gate); err != nil {
			return err
		}
	}
	if d.Attempt <= s.First {
		return errors.New("not yet")
	}
	if s.Do == "effect" {
		_, err := p.direct.Exec(ctx, "insert into faults.effects values ($1, $2, $3, $4, $5)", p.consumer, d.Key.Record, d.Seq, d.IdempotencyKey, d.Redelivered)
		return err
	}
	if s.Do == "writes" && tx != nil {
		if _, err := tx.Exec(ctx, "insert into faults.effects values ($1, $2, $3, $4, $5)", p.consumer, d.Key.Record, d.Seq, d.IdempotencyKey, d.Redelivered); err != nil {
			return err
		}
		return errors.New("it has written, and failed")
	}
	return p.act(ctx, tx, s.Do)
}

// spin uses a processor for so long, and gives nobody a turn on it but by force. The time in which others had
// their turn does not count.
func spin(d time.Duration) {
	c := clock.Real()
	used := time.Duration(0)
	for last := c.Mono(); used < d; {
		now := c.Mono()
		used += min(now-last, time.Millisecond)
		last = now
	}
}

// hog uses a processor for at least about so long without a place where the scheduler could interrupt it.
func hog(d time.Duration) {
	const sample = 1 << 22
	c := clock.Real()
	quickest := d
	for range 8 { // others may have had the processor during most of them, but hardly during all
		began := c.Mono()
		burned.Add(burn(sample))
		quickest = min(quickest, c.Mono()-began)
	}
	burned.Add(burn(int(sample * float64(d) / float64(quickest))))
}

// burned keeps the compiler from leaving out what nobody reads.
var burned atomic.Uint64

//go:noinline
func burn(n int) (x uint64) {
	for range n {
		x = x*6364136223846793005 + 1442695040888963407
	}
	return x
}

func (p player) act(ctx context.Context, tx pgx.Tx, what string) error {
	switch what {
	case "exit":
		os.Exit(3)
	case "stack":
		fmt.Fprintln(os.Stderr, dive(make([]byte, 1)))
	case "memory":
		return eat()
	case "panic":
		panic("staged")
	case "fail":
		return errors.New("staged failure")
	case "permanent":
		return keyline.Permanent(errors.New("staged failure"))
	case "outage":
		var up bool
		if err := p.direct.QueryRow(ctx, "select exists (select from faults.outage)").Scan(&up); err != nil || !up {
			return errors.New("downstream is away")
		}
	case "nul":
		return errors.New("a NUL \x00 and \xff\xfe no UTF-8")
	case "swallow":
		if tx != nil {
			_, _ = tx.Exec(ctx, "select 1/0") // the point: nobody looks
		}
	}
	return nil
}

func dive(b []byte) int { return len(b) + dive(append(b, b[0])) }

// eat allocates until the system gives no more, at a gigabyte.
func eat() error {
	limit := syscall.Rlimit{Cur: 1 << 30, Max: 1 << 30}
	if err := syscall.Setrlimit(syscall.RLIMIT_DATA, &limit); err != nil {
		return err
	}
	var kept [][]byte
	for {
		b := make([]byte, 16<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		kept = append(kept, b)
		if len(kept) > 1000 {
			return errors.New("the limit on memory does not hold")
		}
	}
}

// await waits at a gate.
func (p player) await(ctx context.Context, gate string) error {
	for {
		var open bool
		err := p.direct.QueryRow(ctx, "select exists (select from faults.gates where name = $1)", gate).Scan(&open)
		if open {
			return nil
		}
		if ctx.Err() != nil {
			return errors.Join(ctx.Err(), err)
		}
		if err := clock.Sleep(ctx, clock.Real(), 20*time.Millisecond); err != nil {
			return err
		}
	}
}
