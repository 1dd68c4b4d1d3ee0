package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	osexec "os/exec"
	"os/signal"
	"path/filepath"
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
	Stay      bool     // the process goes on when its worker has stopped
	Wrap      []string `json:"-"` // a command to run the worker under
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
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(4) // the suite is gone
	}()
	stop := make(chan os.Signal, 4)
	signal.Notify(stop, syscall.SIGTERM)
	cfg, err := pgxpool.ParseConfig(s.URL)
	if err != nil {
		return err
	}
	cfg.MaxConns = 32 // as many HandleTx transactions at once
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
	if err := w.Start(ctx); err != nil {
		return err
	}
	fmt.Println("ready")
	<-stop
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
			c.HandleBatch = func(ctx context.Context, batch []*keyline.Delivery) error {
				for _, d := range batch {
					if err := p.play(ctx, nil, d); err != nil {
						return err
					}
				}
				return nil
			}
		default:
			c.Handle = func(ctx context.Context, d *keyline.Delivery) error { return p.play(ctx, nil, d) }
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
	if s.Gate != "" {
		if err := p.await(ctx, s.Gate); err != nil {
			return err
		}
	}
	if d.Attempt <= s.First {
		return errors.New("not yet")
	}
	return p.act(ctx, tx, s.Do)
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

// worker is a worker process.
type worker struct {
	t     *stage
	cmd   *osexec.Cmd
	lines chan string
	gone  chan struct{}
}

// start starts a worker and waits until it is ready.
func (t *stage) start(s spec) *worker {
	w := t.launch(s)
	if !w.says("ready", 60*time.Second) {
		t.fatal("worker %s does not start", s.Name)
	}
	return w
}

// launch starts a worker process.
func (t *stage) launch(s spec) *worker {
	if s.URL == "" {
		s.URL = t.url()
	}
	if s.Direct == "" {
		s.Direct = t.url()
	}
	if len(s.Consumers) == 0 {
		s.Consumers = []string{"a", "b", "tx"}
	}
	if s.Config.Lease == 0 {
		s.Config.Lease = 2 * time.Second
	}
	text, err := json.Marshal(s)
	t.must(err, "encode")
	self, err := os.Executable()
	t.must(err, "find itself")
	args := append(s.Wrap, self)
	cmd := osexec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	log, err := os.OpenFile(filepath.Join(t.dir, s.Name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	t.must(err, "open a log")
	cmd.Stderr = log
	in, err := cmd.StdinPipe() // it ends with this program; Pdeathsig would go by the thread
	t.must(err, "make a pipe")
	out, err := cmd.StdoutPipe()
	t.must(err, "make a pipe")
	t.must(cmd.Start(), "start a worker")
	w := &worker{t: t, cmd: cmd, lines: make(chan string, 1000), gone: make(chan struct{})}
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			w.lines <- lines.Text()
		}
		_ = cmd.Wait() // how it ends is the scenario's business
		_, _ = in.Close(), log.Close()
		close(w.gone)
		close(w.lines)
	}()
	t.onEnd(w.kill)
	return w
}

// says waits for a line; false where the worker ends first, or time does.
func (w *worker) says(line string, within time.Duration) bool {
	timer := w.t.house.clock.NewTimer(within)
	defer timer.Stop()
	for {
		select {
		case got, ok := <-w.lines:
			if !ok {
				return false
			}
			if len(got) >= len(line) && got[:len(line)] == line {
				return true
			}
		case <-timer.C():
			return false
		}
	}
}

func (w *worker) signal(s syscall.Signal) {
	w.t.must(w.cmd.Process.Signal(s), "signal a worker")
}

// kill ends the worker as a power cut would.
func (w *worker) kill() {
	_ = w.cmd.Process.Kill() // it may be gone
	<-w.gone
}

// ended waits until the worker is gone.
func (w *worker) ended(within time.Duration) bool {
	timer := w.t.house.clock.NewTimer(within)
	defer timer.Stop()
	select {
	case <-w.gone:
		return true
	case <-timer.C():
		return false
	}
}
