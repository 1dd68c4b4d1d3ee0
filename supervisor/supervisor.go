package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/keylinehq/keyline/actors"
	"github.com/keylinehq/keyline/actors/delivery"
	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// Supervisor is a running worker. It is started once and stopped once.
type Supervisor struct {
	cfg Config
	env *actors.Env

	system   *actor.ActorSystem
	rootPID  *actor.PID
	rootGone chan struct{}
	actors   map[string]*place // by actor id; only the root actor touches it

	gate   *gate
	table  *table
	room   *room
	due    *dueTimes
	wakes  *wakeSlot
	loader *loader
	events *eventLoader
	timers *timers
	health *health
	stats  stats

	registry atomic.Pointer[core.Registry]

	// inc is the present incarnation; nil before the first Join and while fenced.
	inc     atomic.Pointer[incarnation]
	lastGen uint64 // of the lease loop
	// fencedWorker is an incarnation that must still be said to have left.
	fencedWorker atomic.Int64
	joined       chan struct{}
	joinOnce     sync.Once
	rejoined     chan struct{} // one slot, for the claim loop
	fenceReq     chan fencing  // one slot
	orphans      chan struct{} // one slot: sweep now
	more         chan struct{} // one slot: call for others

	// claiming excludes a claim in flight from the orphan sweep: what it is
	// about to return is held by nobody yet.
	claiming sync.Mutex

	suspectMu sync.Mutex
	suspects  suspects
	yielded   clock.Timer

	drainAsked chan struct{} // closed when an operator has asked this worker to drain
	drainOnce  sync.Once
	draining   atomic.Bool
	leaving    atomic.Bool // the sign-off has begun: losing the lease is no news
	dry        atomic.Bool // the claim loop has found nothing, and not woken since
	kill       context.CancelCauseFunc

	life   lifecycle
	intake context.Context // ends when Stop begins: claims
	run    context.Context // ends when Stop has ended: the rest
}

// incarnation is one registration of this worker.
type incarnation struct {
	worker int64
	gen    uint64
	joined time.Duration // begin of the join
}

// fencing is a reason to fence.
type fencing struct{ cause error }

// lifecycle is the state of Start and Stop.
type lifecycle struct {
	mu         sync.Mutex
	started    bool
	stopping   bool
	abort      context.CancelCauseFunc // of a Start that has not come far
	ready      chan struct{}           // Start is through, one way or the other
	failed     bool                    // it is, and nothing runs
	stopIntake context.CancelFunc
	stopRun    context.CancelFunc
	intake     sync.WaitGroup
	loops      sync.WaitGroup
	done       chan struct{}
	status     Status
	err        error
}

// errGraceEnded is the cause of a handler's cancelled context at a stop.
var errGraceEnded = errors.New("keyline: the worker is stopping and its grace has ended")

// New checks the configuration. Nothing is started.
func New(cfg Config) (*Supervisor, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Supervisor{
		cfg: cfg, gate: newGate(cfg.Clock, cfg.MaxInFlight, cfg.MaxInTx, cfg.Consumers), table: newTable(),
		due: newDueTimes(), wakes: newWakeSlot(), timers: newTimers(cfg.Clock),
		health: newHealth(cfg.Clock), joined: make(chan struct{}), rejoined: make(chan struct{}, 1),
		fenceReq: make(chan fencing, 1), orphans: make(chan struct{}, 1), more: make(chan struct{}, 1), rootGone: make(chan struct{}),
		drainAsked: make(chan struct{}),
		actors:     map[string]*place{}, suspects: suspects{yield: cfg.SuspectYield},
	}
	s.room = newRoom(cfg.MaxResident, s.table.notify)
	s.loader, s.events = newLoader(s), newEventLoader(s)
	s.life.done, s.life.ready = make(chan struct{}), make(chan struct{})
	return s, nil
}

// Start registers the worker and begins to process. It returns when the worker
// has joined, or with an error when ctx ends before; then nothing is left
// running. The worker lives until Stop, not until ctx ends.
func (s *Supervisor) Start(ctx context.Context) error {
	base := context.WithoutCancel(ctx)
	ctx, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	s.life.mu.Lock()
	if s.life.started || s.life.stopping {
		s.life.mu.Unlock()
		return errors.New("supervisor: started twice, or after a stop")
	}
	s.life.started, s.life.abort = true, abort
	s.life.mu.Unlock()

	if err := s.firstRegistry(ctx); err != nil {
		s.life.failed = true
		close(s.life.done)
		close(s.life.ready)
		return err
	}
	var work context.Context
	work, s.kill = context.WithCancelCause(base)
	s.run, s.life.stopRun = context.WithCancel(base)
	s.intake, s.life.stopIntake = context.WithCancel(s.run)
	s.spawnRoot(work)
	s.startLoops()
	close(s.life.ready)
	select {
	case <-s.joined:
		return nil
	case <-ctx.Done():
		// The cause, and what was in the way.
		err := errors.Join(context.Cause(ctx), s.health.lastError("lease"))
		_, _ = s.Stop(ctx)
		return fmt.Errorf("supervisor: start: %w", err)
	}
}

// firstRegistry reads the registry, again and again until ctx ends.
func (s *Supervisor) firstRegistry(ctx context.Context) error {
	for b := newBackoff(s.cfg.Random, s.cfg.Lease/3); ; {
		_, err := s.refreshRegistry(ctx)
		if err == nil {
			return nil
		}
		if clock.Sleep(ctx, s.cfg.Clock, b.next()) != nil {
			return fmt.Errorf("supervisor: start: %w", errors.Join(context.Cause(ctx), err))
		}
	}
}

func (s *Supervisor) spawnRoot(work context.Context) {
	log := s.cfg.Log
	s.system = actor.NewActorSystem(
		actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return slog.New(quiet{h: log.Handler()}) }),
		// The throttle keeps a goroutine for this long after a dead letter.
		actor.WithDeadLetterThrottleInterval(10*time.Millisecond),
	)
	s.env = &actors.Env{
		System: s.system, Clock: s.cfg.Clock, Deliveries: s.cfg.Deliveries, Runner: s.cfg.Runner,
		Gate: s.gate, Pairs: s.cfg.Pairs, Machine: s.cfg.Machine, Crew: actors.NewCrew(), Log: log, Context: work,
		Options: delivery.Options{Random: s.cfg.Random, FlushDelay: s.cfg.FlushDelay,
			CrashBudget: s.cfg.CrashBudget, LoadLimit: s.cfg.LoadLimit},
	}
	s.env.Init()
	props := s.env.Crew.Props(func() actor.Actor { return &root{s} })
	s.rootPID = s.system.Root.SpawnPrefix(props, "supervisor-")
}

func (s *Supervisor) startLoops() {
	claims := newClaimLoop(s)
	s.loop(s.intake, &s.life.intake, "wakes", s.pumpWakes)
	s.loop(s.intake, &s.life.intake, "claims", claims.run)
	s.loop(s.intake, &s.life.intake, "more", s.callMore)
	s.loop(s.run, &s.life.loops, "loads", s.loader.run)
	s.loop(s.run, &s.life.loops, "events", s.events.run)
	s.loop(s.run, &s.life.loops, "timers", s.timers.run)
	s.loop(s.run, &s.life.loops, "lease", s.leaseLoop)
	s.loop(s.run, &s.life.loops, "observer", s.observerLoop())
	s.loop(s.run, &s.life.loops, "news", s.newsLoop())
	s.loop(s.run, &s.life.loops, "orphans", s.orphanLoop)
}

// loop runs f until ctx ends. If it fails, it is run again after a pause, and
// alone: the other loops do not notice.
func (s *Supervisor) loop(ctx context.Context, group *sync.WaitGroup, name string, f func(context.Context) error) {
	s.health.add(name)
	group.Go(func() {
		b := newBackoff(s.cfg.Random, s.cfg.Lease/3)
		for ctx.Err() == nil {
			began := s.cfg.Clock.Mono()
			err := guard(func() error { return f(ctx) })
			if ctx.Err() != nil {
				return
			}
			if err == nil {
				err = errors.New("ended by itself")
			}
			if s.cfg.Clock.Mono()-began > s.cfg.Lease {
				b.reset()
			}
			s.health.failed(name, err)
			s.cfg.Log.Warn("worker loop failed; it is run again", "loop", name, "error", err)
			if clock.Sleep(ctx, s.cfg.Clock, b.next()) != nil {
				return
			}
		}
	})
}

// gen is the present incarnation's number, 0 where there is none.
func (s *Supervisor) gen() uint64 {
	if i := s.inc.Load(); i != nil {
		return i.gen
	}
	return 0
}

// Worker is the present incarnation's id, 0 while there is none.
func (s *Supervisor) Worker() int64 {
	if i := s.inc.Load(); i != nil {
		return i.worker
	}
	return 0
}

// DrainAsked is closed when an operator has asked this worker to drain. Whoever
// started it stops it then. It is heard of within a third of the lease.
func (s *Supervisor) DrainAsked() <-chan struct{} { return s.drainAsked }

func (s *Supervisor) refreshRegistry(ctx context.Context) (*core.Registry, error) {
	r, err := s.cfg.Deliveries.Registry(ctx)
	if err != nil {
		return nil, fmt.Errorf("read registry: %w", err)
	}
	for {
		old := s.registry.Load()
		if old != nil && old.Epoch > r.Epoch {
			return old, nil // another loop was faster and saw more
		}
		if s.registry.CompareAndSwap(old, r) {
			if old != nil && old.Epoch != r.Epoch {
				// Whoever found out: all residents must hear of it, also those
				// of which nothing is left to be flushed while a handler runs.
				s.table.each(func(p *place) { p.seat.RegistryMoved() })
			}
			return r, nil
		}
	}
}

// Hosted are the ids of the consumers that this worker claims for, by the registry that new records
// go by; none before Start.
func (s *Supervisor) Hosted() []int32 {
	r := s.registry.Load()
	if r == nil {
		return nil
	}
	ids := make([]int32, 0, len(r.Consumers))
	for _, c := range r.Consumers {
		if c.Hosted && c.Status == core.Active {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

// noticeFence asks for fencing where an error says that this worker is lost.
func (s *Supervisor) noticeFence(err error) {
	if errors.Is(err, keylinetype.ErrFenced) {
		select {
		case s.fenceReq <- fencing{err}:
		default:
		}
	}
}

// backoff is the pause between failures: doubling, with jitter.
type backoff struct {
	random func() float64
	max    time.Duration
	n      int
}

func newBackoff(random func() float64, limit time.Duration) *backoff {
	return &backoff{random: random, max: limit}
}

func (b *backoff) reset() { b.n = 0 }

func (b *backoff) next() time.Duration {
	d := 50 * time.Millisecond << min(b.n, 10)
	b.n++
	d = min(d, b.max)
	return d/2 + time.Duration(b.random()*float64(d/2))
}
