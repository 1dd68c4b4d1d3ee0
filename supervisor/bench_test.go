package supervisor

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/keylinehq/keyline/actors"
	"github.com/keylinehq/keyline/actors/delivery"
	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// instantStore has records with one event each and answers at once: what is
// left is the cost of actors, machines and messages.
type instantStore struct {
	registry *core.Registry
	total    int64
	next     atomic.Int64
	settled  atomic.Int64
	done     chan struct{}
	flushes  chan flushCall
}

type flushCall struct {
	f    *core.Flush
	done func(core.FlushResult)
}

func newInstantStore(records, consumers int) *instantStore {
	list := make([]*core.Consumer, consumers)
	for i := range list {
		list[i] = &core.Consumer{ID: int32(i + 1), Name: fmt.Sprintf("consumer-%d", i+1), Status: core.Active,
			Types: []string{"*"}, Hosted: true, Retry: keylinetype.RetryPolicy{Delays: keylinetype.DefaultRetryDelays()}}
	}
	return &instantStore{registry: core.NewRegistry(1, keylinetype.Independent, list, nil), total: int64(records),
		done: make(chan struct{}), flushes: make(chan flushCall, 4096)}
}

// commit is the committer's goroutine.
func (s *instantStore) commit() {
	for c := range s.flushes {
		r := core.FlushResult{Record: c.f.Record, Token: c.f.Token, Head: 1}
		if c.f.Then != core.Keep {
			r.Status = core.FlushGone
		}
		c.done(r)
		if r.Status == core.FlushGone && s.settled.Add(1) == s.total {
			close(s.done)
		}
	}
}

func (s *instantStore) Claim(_ context.Context, r core.ClaimRequest) ([]core.Claim, error) {
	var out []core.Claim
	for len(out) < r.Limit {
		n := s.next.Add(1)
		if n > s.total {
			break
		}
		out = append(out, core.Claim{Record: n, Token: n})
	}
	return out, nil
}

func (s *instantStore) ClaimRecord(ctx context.Context, r core.ClaimRequest, _ int) ([]core.Claim, []core.Loaded, error) {
	claims, err := s.Claim(ctx, r)
	return claims, nil, err
}

func (s *instantStore) NextDue(context.Context, []int32) (time.Duration, bool, error) {
	return 0, false, nil
}

func (s *instantStore) Load(_ context.Context, rs []core.LoadRequest) ([]core.Loaded, error) {
	out := make([]core.Loaded, len(rs))
	for i, r := range rs {
		out[i] = core.Loaded{Claim: r.Claim, Key: "k", Head: 1, Events: []core.Event{{Record: r.Record,
			Event: keylinetype.Event{Seq: 1, Type: "t", Version: 1}}}}
	}
	return out, nil
}

func (s *instantStore) LoadEvents(context.Context, []core.EventRange) ([]core.Event, error) {
	return nil, nil
}

func (s *instantStore) Flush(f *core.Flush, _ int64, done func(core.FlushResult)) {
	s.flushes <- flushCall{f, done}
}

func (s *instantStore) News(context.Context, []int64) (int64, []core.News, error) { return 1, nil, nil }

func (s *instantStore) Registry(context.Context) (*core.Registry, error) { return s.registry, nil }

type quietLeases struct{}

func (quietLeases) Join(context.Context, core.Worker) (int64, error)  { return 1, nil }
func (quietLeases) Renew(context.Context, int64, []byte) error        { return nil }
func (quietLeases) Beats(context.Context) ([]core.Beat, error)        { return nil, nil }
func (quietLeases) MarkLost(context.Context, core.Beat) (bool, error) { return false, nil }
func (quietLeases) Recover(context.Context) (int, error)              { return 0, nil }
func (quietLeases) Leave(context.Context, int64) error                { return nil }
func (quietLeases) LeaveLater(context.Context, int64) error           { return nil }
func (quietLeases) HandBackOrphans(context.Context, int64, []core.Held) (int, error) {
	return 0, nil
}

// oneWake wakes once.
type oneWake struct{ once sync.Once }

func (w *oneWake) Wait(ctx context.Context) (Wake, error) {
	first := false
	w.once.Do(func() { first = true })
	if first {
		return Wake{Unbounded: true, Cause: "start"}, nil
	}
	<-ctx.Done()
	return Wake{}, ctx.Err()
}
func (*oneWake) Busy()                   {}
func (*oneWake) Dry(time.Duration, bool) {}
func (*oneWake) More()                   {}

type instantRunner struct{}

func (instantRunner) Run(context.Context, *core.Work) core.Outcome { return core.Outcome{} }

func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// relay is a machine that decides nothing: it starts every consumer, flushes
// when all have ended, and stops when that is durable. What is left beside it
// is the cost of actors and messages.
type relay struct {
	claim   core.Claim
	running int
	effects []delivery.Effect
}

func (m *relay) Reset(r *core.Registry, l core.Loaded, _ delivery.Options) []delivery.Effect {
	m.claim, m.running, m.effects = l.Claim, len(r.Consumers), m.effects[:0]
	for _, c := range r.Consumers {
		m.effects = append(m.effects, delivery.Start{Work: &core.Work{Record: l.Record, Token: l.Token, Consumer: c, Events: l.Events, Attempt: 1}})
	}
	return m.effects
}

func (m *relay) Step(_ time.Time, msg delivery.Message) []delivery.Effect {
	m.effects = m.effects[:0]
	switch msg.(type) {
	case *delivery.Ended:
		if m.running--; m.running == 0 {
			m.effects = append(m.effects, delivery.Flush{Flush: &core.Flush{Record: m.claim.Record, Token: m.claim.Token, Then: core.Settle}})
		}
	case *delivery.Flushed:
		m.effects = append(m.effects, delivery.Stop{Why: delivery.StopSettled})
	}
	return m.effects
}

func newRelay(r *core.Registry, l core.Loaded, o delivery.Options) (actors.Machine, []delivery.Effect) {
	m := &relay{}
	return m, m.Reset(r, l, o)
}

// BenchmarkRecords drains b.N records, each with one event, through claim loop,
// loader, record and consumer actors and machines, with a store and handlers
// that answer at once. core-µs/record is processor time, all goroutines
// together, garbage collection included. "messages" has a machine that decides
// nothing, "all" the real one.
func BenchmarkRecords(b *testing.B) {
	for _, machine := range []string{"messages", "all"} {
		for _, consumers := range []int{1, 4} {
			b.Run(fmt.Sprintf("%s/consumers=%d", machine, consumers), func(b *testing.B) {
				cfg := Config{Leases: quietLeases{}, Wakes: &oneWake{}, Runner: instantRunner{}}
				if machine == "messages" {
					cfg.Machine = newRelay
				}
				drain(b, cfg, consumers)
			})
		}
	}
}

func drain(b *testing.B, cfg Config, consumers int) {
	store := newInstantStore(b.N, consumers)
	go store.commit()
	defer close(store.flushes)
	cfg.Deliveries = store
	s, err := New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	before := cpu()
	if err := s.Start(context.Background()); err != nil {
		b.Fatal(err)
	}
	<-store.done
	used := cpu() - before
	b.StopTimer()
	if _, err := s.Stop(context.Background()); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
	b.ReportMetric(float64(used.Microseconds())/float64(b.N), "core-µs/record")
}

// BenchmarkResident has records with two consumers whose handlers all run, and
// prints what a record costs in memory beside the handlers' own goroutines.
func BenchmarkResident(b *testing.B) {
	const records = 2000
	for b.Loop() {
		store := newInstantStore(records, 2)
		go store.commit()
		release, begun := make(chan struct{}), make(chan struct{}, 2*records)
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		s, err := New(Config{Deliveries: store, Leases: quietLeases{}, Wakes: &oneWake{}, MaxInFlight: 1, MaxBatch: records,
			Runner: blockingRunner{begun, release}})
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Start(context.Background()); err != nil {
			b.Fatal(err)
		}
		for s.Health().Resident < records || queued(s) < 2*records-1 {
			runtime.Gosched()
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/records, "B/record")
		close(release)
		<-store.done
		if _, err := s.Stop(context.Background()); err != nil {
			b.Fatal(err)
		}
		close(store.flushes)
	}
}

func queued(s *Supervisor) int {
	n := 0
	for _, c := range s.Health().Consumers {
		n += c.Queued
	}
	return n
}

type blockingRunner struct {
	begun   chan struct{}
	release chan struct{}
}

func (r blockingRunner) Run(context.Context, *core.Work) core.Outcome {
	<-r.release
	return core.Outcome{}
}
