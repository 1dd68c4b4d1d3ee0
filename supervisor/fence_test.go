package supervisor

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// FAULTS 12 and 18: the claim of R is lost and regained inside one process
// while the first handler is still blocked. The second does not begin before
// the first has ended, and the first's outcome changes nothing.
func TestClaimLostAndRegainedWhileTheHandlerIsBlocked(t *testing.T) {
	store := newTwinStore(t, real())
	a := store.consumer("a")
	records := store.records(t, 1, 2)
	var runs atomic.Int64
	cancelled, release := make(chan struct{}), make(chan struct{})
	again := make(chan core.Work, 10)
	r := newRecorder(t, func(ctx context.Context, w core.Work) error {
		if runs.Add(1) == 1 {
			<-ctx.Done() // the claim is lost
			close(cancelled)
			<-release // and the handler does not care
			return nil
		}
		again <- w
		return nil
	})
	w := startWorker(t, store, r, func(c *Config) { c.Lease = 500 * time.Millisecond })
	eventually(t, "the first run", func() bool { return runs.Load() == 1 })
	first := w.Worker()

	// The heartbeat is cut: the worker fences itself, leaves, and joins again.
	hold := make(chan struct{})
	store.set(func() { store.hold = hold })
	receive(t, "the handler's context ends", cancelled)
	store.set(func() { store.hold = nil })
	close(hold)
	eventually(t, "a new incarnation", func() bool { return w.Worker() > first })
	eventually(t, "the old one has left", func() bool { return store.get(func() int { return store.calls["Leave"] }) > 0 })

	// The new incarnation regains the record, and waits for the old handler.
	eventually(t, "the claim is regained", func() bool {
		w.wakes.notify()
		for _, h := range w.Held() {
			if h.Record == records[0] && w.gen() > 1 && w.table.holds(h) {
				return true
			}
		}
		return false
	})
	if n := runs.Load(); n != 1 {
		t.Fatalf("%d runs while the first is blocked", n)
	}
	if store.through(records, 1, a) {
		t.Fatal("the position moved without a run that counts")
	}
	close(release)
	if got := receive(t, "the second run", again); got.Events[0].Seq != 1 {
		t.Fatalf("the second run is of seq %d: the first one's outcome has counted", got.Events[0].Seq)
	}
	eventually(t, "the rest", func() bool { return store.through(records, 2, a) })
	if h := w.Health(); h.Fenced == 0 || h.FencedClaims == 0 {
		t.Errorf("health: %+v", h)
	}
}

// holds reports whether a seat has this claim.
func (t *table) holds(h core.Held) bool {
	for _, held := range t.held(nil) {
		if held == h {
			return true
		}
	}
	return false
}

// A database outage longer than the lease: the worker comes back by itself, and
// no record is charged a crash.
func TestAnOutageLongerThanTheLease(t *testing.T) {
	store := newTwinStore(t, real())
	a := store.consumer("a")
	records := store.records(t, 3, 1)
	var stuck sync.Map
	r := newRecorder(t, func(ctx context.Context, w core.Work) error {
		if _, again := stuck.LoadOrStore(w.Record, true); !again {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	})
	w := startWorker(t, store, r, func(c *Config) { c.Lease = 500 * time.Millisecond })
	eventually(t, "handlers run", func() bool { return r.total() == 3 })
	store.set(func() { store.down = true })
	eventually(t, "fenced", func() bool { return w.Health().State == "fenced" })
	eventually(t, "it tries to come back", func() bool {
		return !w.Health().Healthy() && store.get(func() int { return store.calls["Leave"] }) > 1
	})
	store.set(func() { store.down = false })
	eventually(t, "running again", func() bool { return w.Health().State == "running" })
	eventually(t, "delivered", func() bool { w.wakes.notify(); return store.through(records, 1, a) })
	eventually(t, "healthy", func() bool { return w.Health().Healthy() })
	for _, id := range records {
		store.set(func() {
			claims, _ := store.twin.Claim(core.ClaimRequest{Worker: store.twin.Join(), Record: id, Limit: 1})
			if len(claims) == 1 && claims[0].Crashes > 0 {
				t.Errorf("record %d became a suspect", id)
			}
		})
	}
}

// An observer marks the silent lost and recovers what they had; the living,
// however slow their lease is renewed beside it, it lets live.
func TestTheSilentAreMarkedLostAndTheLivingAreNot(t *testing.T) {
	store := newTwinStore(t, real())
	a := store.consumer("a")
	records := store.records(t, 2, 1)
	var dead int64
	store.set(func() { // a process that has died holding a claim
		dead = store.twin.Join()
		store.beats[dead] = &core.Beat{Worker: dead, Beat: 7, Lease: 50 * time.Millisecond}
		store.twin.Claim(core.ClaimRequest{Worker: dead, Record: records[0], Limit: 1})
	})
	lease := func(c *Config) { c.Lease = time.Second }
	one := startWorker(t, store, newRecorder(t, nil), lease)
	two := startWorker(t, store, newRecorder(t, nil), lease)
	eventually(t, "the dead one's record", func() bool {
		one.wakes.notify()
		two.wakes.notify()
		return store.through(records, 1, a)
	})
	store.set(func() {
		if !store.ended[dead] {
			t.Error("the dead one was not marked")
		}
	})
	lost := one.Health().Lost + two.Health().Lost
	if lost != 1 || one.Health().Fenced+two.Health().Fenced != 0 {
		t.Errorf("lost %d; %+v %+v", lost, one.Health(), two.Health())
	}
}

// The answer of a claim is lost: nobody here holds what it took. It goes back.
func TestClaimsWithoutAHolderAreHandedBack(t *testing.T) {
	store := newTwinStore(t, real())
	a := store.consumer("a")
	records := store.records(t, 5, 1)
	store.set(func() { store.lose = 1 })
	// Not by the sweep that comes once a lease.
	w := startWorker(t, store, newRecorder(t, nil), func(c *Config) { c.Lease = time.Hour })
	eventually(t, "delivered all the same", func() bool {
		w.wakes.notify()
		return store.through(records, 1, a)
	})
	if w.Health().Orphans == 0 {
		t.Error("no orphans counted")
	}
}

// stuckLog is where a log goes whose reader stands still: nothing is taken from this message on.
type stuckLog struct {
	message string
	free    chan struct{}
}

func (*stuckLog) Enabled(context.Context, slog.Level) bool { return true }
func (l *stuckLog) WithAttrs([]slog.Attr) slog.Handler     { return l }
func (l *stuckLog) WithGroup(string) slog.Handler          { return l }
func (l *stuckLog) Handle(_ context.Context, r slog.Record) error {
	if r.Message == l.message {
		<-l.free
	}
	return nil
}

// What a worker has lost it stops at once, though nobody takes what it has to say about that.
func TestAFenceDoesNotWaitForTheLog(t *testing.T) {
	store := newTwinStore(t, real())
	store.consumer("a")
	store.records(t, 1, 1)
	cancelled := make(chan struct{})
	var once sync.Once
	r := newRecorder(t, func(ctx context.Context, _ core.Work) error {
		<-ctx.Done()
		once.Do(func() { close(cancelled) })
		return ctx.Err()
	})
	log := &stuckLog{message: "worker is fenced", free: make(chan struct{})}
	w := startWorker(t, store, r, func(c *Config) { c.Log = slog.New(log) })
	eventually(t, "the handler runs", func() bool { return r.total() == 1 })
	old := w.Worker()
	w.noticeFence(keylinetype.ErrFenced)
	receive(t, "the handler's context ends", cancelled)
	close(log.free)
	eventually(t, "a new incarnation", func() bool { return w.Worker() > old })
}

// A record that is being loaded while its worker is fenced is not begun under
// the lost claim, or not for long.
func TestARecordThatIsLoadedWhileItsWorkerIsFenced(t *testing.T) {
	store := newTwinStore(t, real())
	a := store.consumer("a")
	records := store.records(t, 1, 1)
	hold := make(chan struct{})
	store.set(func() {
		store.holdLoad = hold
		store.fail["Recover"] = 1 << 30 // the old claim stands meanwhile
	})
	var first atomic.Int64 // the token of the first claim
	r := newRecorder(t, func(ctx context.Context, w core.Work) error {
		if w.Token == first.Load() {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	})
	w := startWorker(t, store, r, func(c *Config) { c.Lease = time.Second })
	eventually(t, "the load", func() bool { return store.get(func() int { return store.heldLoads }) == 1 })
	first.Store(w.Held()[0].Token)
	old := w.Worker()
	w.noticeFence(keylinetype.ErrFenced)
	eventually(t, "a new incarnation", func() bool { return w.Worker() > old })
	store.set(func() { store.holdLoad = nil })
	close(hold)
	eventually(t, "it is not resident under the old claim", func() bool {
		return store.get(func() int { return store.loads[records[0]] }) == 1 && len(w.Held()) == 0
	})
	store.set(func() { store.fail["Recover"] = 0 })
	eventually(t, "delivered under another claim", func() bool {
		w.wakes.notify()
		return store.through(records, 1, a)
	})
	w.idle(t)
}
