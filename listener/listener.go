package listener

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/core"
)

// Mode is whether notifications arrive.
type Mode uint8

// The modes.
const (
	// Starting: not known yet; it polls.
	Starting Mode = iota
	// Listening: a notification to itself has come back on this connection.
	Listening
	// Polling: no connection, or notifications do not arrive on it.
	Polling
)

// String is the mode's name, as in metrics and in the workers table.
func (m Mode) String() string { return [...]string{"starting", "listening", "polling"}[m] }

// Status is a listener as others see it.
type Status struct {
	Mode Mode
	// Reason is why the mode is Polling.
	Reason string
	State  State
}

// Config is what a Listener needs. Fields without a default are required.
type Config struct {
	// ListenURL is a connection string for a direct connection to the database
	// (LISTEN and session locks do not pass transaction poolers). Parameters
	// are read as pgxpool reads them.
	ListenURL string
	// Connection, if not nil, is how to connect, instead of ListenURL: what a program has set on a configuration after it
	// was read from a string (password, database, TLS, a dialer of its own) is in no string.
	Connection *Connection
	// Channel is the notification channel of the schema.
	Channel string
	// ApplicationName is how the listen connection shows in pg_stat_activity.
	// Default: keyline listen.
	ApplicationName string
	// Arming makes the arming session; it must connect on first use, not here.
	Arming func() core.Arming
	// Notify sends a notification to Channel in the way that the store does.
	// The listener checks by it that notifications arrive.
	Notify func(ctx context.Context, payload string) error
	// Hosted returns the consumers that this worker runs. It is called with a
	// lock held: it must return soon and not call the listener.
	Hosted func() []int32

	// Fallback is the interval of the poll that finds what no wake told of.
	// Default: 1 s.
	Fallback time.Duration
	// Linger is how long after the last work the worker keeps looking before
	// it goes to sleep. Default: 30 ms.
	Linger time.Duration
	// LingerPoll is how often it looks meanwhile. Default: 2 ms.
	LingerPoll time.Duration
	// CatchUp is the pause before the first look of an elected worker whose
	// sleep lock is not granted; the pauses double. Default: 10 ms.
	CatchUp time.Duration
	// DueLag is how long an idle worker that is not the sentinel leaves due
	// work to it. Default: 100 ms.
	DueLag time.Duration
	// DueEvery is how often at most such a worker is woken by due work.
	// Default: 1 s.
	DueEvery time.Duration
	// Rearm bounds one wait for a lock, since a waiting statement keeps vacuum
	// back; then the worker asks again. Default: 30 s.
	Rearm time.Duration
	// Crowd is how long at most the sentinel stays awake after it has found that
	// those who append stand in line to notify; then notifications are tried
	// again. It begins with 250 ms, and is four times as long where they still do. Default: 5 s.
	Crowd time.Duration
	// Ping is how often the listen connection and the sentinel's session are
	// checked, which finds one that has fallen silent; what is missed meanwhile is found by
	// the poll. Default: five times Fallback, at most 5 s.
	Ping time.Duration
	// ProbeTimeout is how long a notification to itself may take before
	// notifications count as not arriving. Default: 5 s.
	ProbeTimeout time.Duration
	// Reprobe is the pause before that is tried again. Default: 1 min.
	Reprobe time.Duration

	// Clock defaults to the system's.
	Clock clock.Clock
	// Logger defaults to slog.Default.
	Logger *slog.Logger
}

func (c *Config) setDefaults() {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&c.Fallback, time.Second},
		{&c.Linger, 30 * time.Millisecond},
		{&c.LingerPoll, 2 * time.Millisecond},
		{&c.CatchUp, 10 * time.Millisecond},
		{&c.DueLag, 100 * time.Millisecond},
		{&c.DueEvery, time.Second},
		{&c.Rearm, 30 * time.Second},
		{&c.Crowd, 5 * time.Second},
		{&c.ProbeTimeout, 5 * time.Second},
		{&c.Reprobe, time.Minute},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if c.Ping == 0 {
		c.Ping = min(5*c.Fallback, 5*time.Second)
	}
	if c.ApplicationName == "" {
		c.ApplicationName = "keyline listen"
	}
	if c.Clock == nil {
		c.Clock = clock.Real()
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
}

func (c *Config) validate() error {
	var errs []error
	check := func(field string, ok bool, want string) {
		if !ok {
			errs = append(errs, fmt.Errorf("listener: %s %s", field, want))
		}
	}
	check("Channel", c.Channel != "", "is required")
	check("Channel", len(c.Channel) < 64, "is longer than 63 bytes")
	check("Arming", c.Arming != nil, "is required")
	check("Notify", c.Notify != nil, "is required")
	check("Hosted", c.Hosted != nil, "is required")
	for name, d := range map[string]time.Duration{
		"Fallback": c.Fallback, "Linger": c.Linger, "LingerPoll": c.LingerPoll, "CatchUp": c.CatchUp,
		"DueLag": c.DueLag, "DueEvery": c.DueEvery, "Rearm": c.Rearm, "Ping": c.Ping, "Crowd": c.Crowd,
		"ProbeTimeout": c.ProbeTimeout, "Reprobe": c.Reprobe,
	} {
		check(name, d > 0, "must be positive")
	}
	return errors.Join(errs...)
}

// Listener wakes a claim loop; see the package's documentation for both sides.
type Listener struct {
	cfg   Config
	armer *armer
	link  *link
	wakes slot
	// poke tells the timer's goroutine that the policy's next time changed.
	poke chan struct{}

	mu      sync.Mutex
	policy  Policy
	next    time.Duration
	mode    Mode
	reason  string
	stopped bool

	cancel context.CancelFunc
	wg     sync.WaitGroup
	done   chan struct{}

	changed func(State) // what tests hear of the policy's state, with mu held; nil: nobody does
}

// New checks the configuration. Nothing is started or connected.
func New(cfg Config) (*Listener, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	t, err := cfg.target()
	if err != nil {
		return nil, fmt.Errorf("listener: %w", err)
	}
	l := &Listener{
		cfg: cfg, wakes: newSlot(), poke: make(chan struct{}, 1), done: make(chan struct{}),
		policy: NewPolicy(Timing{
			Fallback: cfg.Fallback, Linger: cfg.Linger, LingerPoll: cfg.LingerPoll, CatchUp: cfg.CatchUp,
			DueLag: cfg.DueLag, DueEvery: cfg.DueEvery, Rearm: cfg.Rearm, Ping: cfg.Ping, Crowd: cfg.Crowd,
		}, cfg.Clock.Mono()),
		next: never,
	}
	l.armer = newArmer(cfg.Arming(), cfg.Clock, cfg.Logger)
	l.armer.elected = func(term int64) {
		l.step(func(now time.Duration) Effects { l.policy.Elected(now, term); return Effects{} })
	}
	l.armer.granted = func(term int64) {
		l.step(func(now time.Duration) Effects { return l.policy.Granted(now, term) })
	}
	l.armer.crowded = func(term int64) {
		l.step(func(now time.Duration) Effects { return l.policy.Crowded(now, term) })
	}
	l.armer.lost = func(term int64) {
		l.step(func(now time.Duration) Effects { return l.policy.Lost(now, term) })
	}
	l.link = &link{
		channel: cfg.Channel, dialer: newDialer(t), clock: cfg.Clock, log: cfg.Logger, notify: cfg.Notify,
		timing: linkTiming{ping: cfg.Ping, probe: cfg.ProbeTimeout, reprobe: cfg.Reprobe},
		heard:  l.heard, mode: l.setMode, events: make(chan linkEvent),
	}
	return l, nil
}

// Start begins to listen, and puts a first wake into the slot. It waits for
// nothing: while the database cannot be reached, the listener polls. A second
// Start, or one after Stop, is an error.
func (l *Listener) Start(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cancel != nil || l.stopped {
		return errors.New("listener: started twice, or after a stop")
	}
	// The listener lives until Stop, not until the caller's context ends:
	// whoever shuts down decides the order.
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	l.cancel = cancel
	l.wg.Go(func() { l.armer.run(run) })
	l.wg.Go(func() { l.link.run(run) })
	l.wg.Go(func() { l.ticks(run) })
	go func() {
		l.wg.Wait()
		close(l.done)
	}()
	return nil
}

// Stop gives up the locks, closes both connections and waits for that, or
// until ctx ends, whose cause it then returns; it goes on all the same. It may
// be called again, and without a Start. No wake is put into the slot any more.
func (l *Listener) Stop(ctx context.Context) error {
	l.mu.Lock()
	l.stopped = true
	cancel := l.cancel
	l.mu.Unlock()
	if cancel == nil {
		return nil
	}
	cancel()
	select {
	case <-l.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Wakes is where the claim loop waits. The channel is never closed.
func (l *Listener) Wakes() <-chan Wake { return l.wakes }

// Dry says that an unbounded claim found nothing though there is room for
// work; the next mailbox that this worker could claim is due in nextDue, if ok.
// It returns at once.
func (l *Listener) Dry(nextDue time.Duration, ok bool) {
	l.step(func(now time.Duration) Effects { return l.policy.Dry(now, nextDue, ok) })
}

// Busy says that so much work was found that nobody need call, or that there is
// no room for any. It returns at once: locks are given up in the background.
func (l *Listener) Busy() {
	l.step(func(now time.Duration) Effects { return l.policy.Busy(now) })
}

// Mode is whether notifications arrive.
func (l *Listener) Mode() Mode { return l.Status().Mode }

// Status is the current status.
func (l *Listener) Status() Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Status{Mode: l.mode, Reason: l.reason, State: l.policy.State()}
}

func (l *Listener) heard(payload string) {
	n := ParseNote(payload)
	if n.kind == noteProbe {
		return
	}
	l.step(func(now time.Duration) Effects { return l.policy.Heard(now, n, l.cfg.Hosted()) })
}

func (l *Listener) setMode(m Mode, reason string) {
	l.step(func(now time.Duration) Effects {
		was := l.mode
		l.mode, l.reason = m, reason
		if m == was {
			return Effects{}
		}
		if m != Listening && was != Listening {
			return Effects{}
		}
		return l.policy.Link(now, m == Listening)
	})
}

// step runs one step of the policy and carries out its effects, none of which
// blocks.
func (l *Listener) step(f func(now time.Duration) Effects) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return
	}
	before := l.policy.State()
	e := f(l.cfg.Clock.Mono())
	if e.Disarm {
		l.armer.arm(0)
	}
	if e.Arm != 0 {
		l.armer.arm(e.Arm)
	}
	if e.Ping {
		l.armer.check()
	}
	if e.Wake.Causes != 0 {
		l.wakes.put(e.Wake)
	}
	if after := l.policy.State(); after != before && l.changed != nil {
		l.changed(after)
	}
	if next := l.policy.Next(); next != l.next {
		l.next = next
		select {
		case l.poke <- struct{}{}:
		default:
		}
	}
}

// ticks calls the policy when it wants to be called.
func (l *Listener) ticks(ctx context.Context) {
	timer := l.cfg.Clock.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C():
			l.step(l.policy.Tick)
		case <-l.poke:
		case <-ctx.Done():
			return
		}
		l.mu.Lock()
		next := l.next
		l.mu.Unlock()
		if next == never {
			timer.Stop()
		} else {
			timer.Reset(max(next-l.cfg.Clock.Mono(), 0))
		}
	}
}
