package supervisor

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/internal/sim"
	"github.com/keylinehq/keyline/keylinetype"
)

var errDown = errors.Join(errors.New("connection refused"), keylinetype.ErrUnavailable)

// twinStore is a store for one or more workers: the in-memory twin behind a
// lock, with a committer's goroutine and faults.
type twinStore struct {
	clock clock.Clock

	mu    sync.Mutex
	twin  *sim.Twin
	local map[string]sim.Local
	beats map[int64]*core.Beat
	ended map[int64]bool
	calls map[string]int
	// fail makes the next n calls of a method fail, before they do anything.
	fail map[string]int
	// lose makes the next n claims fail after they have been carried out.
	lose int
	// down makes every call fail.
	down bool
	// hold, if not nil, blocks renewals until it is closed or their context ends.
	hold chan struct{}

	// holdFlush, if not nil, holds the committer until it is closed.
	holdFlush      chan struct{}
	pendingFlushes int // with the committer
	// holdLoad, if not nil, holds loads until it is closed.
	holdLoad  chan struct{}
	heldLoads int
	loads     map[int64]int // by record
	// due is when records that were handed back are due again.
	due map[int64]time.Time

	flushes chan func()
	done    sync.WaitGroup
}

// twinWorker is the store as one worker's: flushes are made for its present
// incarnation.
type twinWorker struct {
	*twinStore
	mu     sync.Mutex
	worker int64
}

func newTwinStore(t *testing.T, c clock.Clock) *twinStore {
	t.Helper()
	s := &twinStore{clock: c, twin: sim.NewTwin(c.Now(), keylinetype.Independent), local: map[string]sim.Local{},
		beats: map[int64]*core.Beat{}, ended: map[int64]bool{}, calls: map[string]int{}, fail: map[string]int{},
		due: map[int64]time.Time{}, loads: map[int64]int{}, flushes: make(chan func(), 10000)}
	s.done.Go(func() {
		for f := range s.flushes {
			f()
		}
	})
	t.Cleanup(func() {
		close(s.flushes)
		s.done.Wait()
	})
	return s
}

// consumer registers a hosted consumer.
func (s *twinStore) consumer(name string, change ...func(*core.Consumer)) int32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.local[name] = sim.Local{Window: 1}
	c := core.Consumer{Name: name, Types: []string{"*"}, Retry: keylinetype.RetryPolicy{Delays: keylinetype.DefaultRetryDelays()}}
	for _, f := range change {
		f(&c)
	}
	return s.twin.Register(c)
}

// append appends n events to a record, which is made if need be.
func (s *twinStore) append(t *testing.T, record int64, n int) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.twin.Now = s.clock.Now()
	if !s.twin.Append(record, make([]sim.NewEvent, n)...) {
		t.Fatal("append would wait")
	}
}

func (s *twinStore) records(t *testing.T, n, events int) []int64 {
	t.Helper()
	ids := make([]int64, n)
	for i := range ids {
		s.mu.Lock()
		ids[i] = s.twin.NewRecord(keylinetype.Key{Record: "r"})
		s.mu.Unlock()
		s.append(t, ids[i], events)
	}
	return ids
}

// enter counts a call and says whether it fails.
func (s *twinStore) enter(method string) error {
	s.mu.Lock()
	s.twin.Now = s.clock.Now()
	s.calls[method]++
	if s.down {
		return errDown
	}
	if s.fail[method] > 0 {
		s.fail[method]--
		return errDown
	}
	return nil
}

func (s *twinStore) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *twinStore) get(f func() int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return f()
}

func (w *twinWorker) joined(id int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.worker = id
}

func (w *twinWorker) id() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.worker
}

func (w *twinWorker) Claim(_ context.Context, r core.ClaimRequest) ([]core.Claim, error) {
	s := w.twinStore
	err := s.enter("Claim")
	defer s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	claims, live := s.twin.Claim(r)
	if !live {
		return nil, keylinetype.ErrFenced
	}
	for _, c := range claims {
		delete(s.due, c.Record)
	}
	if s.lose > 0 && len(claims) > 0 {
		s.lose--
		return nil, errDown
	}
	return claims, nil
}

// ClaimRecord reads only where nothing is made of loads.
func (w *twinWorker) ClaimRecord(ctx context.Context, r core.ClaimRequest, limit int) ([]core.Claim, []core.Loaded, error) {
	claims, err := w.Claim(ctx, r)
	w.twinStore.mu.Lock()
	later := w.holdLoad != nil || w.fail["Load"] > 0
	w.twinStore.mu.Unlock()
	if err != nil || len(claims) == 0 || later {
		return claims, nil, err
	}
	loaded, err := w.Load(ctx, []core.LoadRequest{{Claim: claims[0], Limit: limit}})
	if err != nil {
		return claims, nil, nil
	}
	return claims, loaded, nil
}

func (w *twinWorker) NextDue(context.Context, []int32) (time.Duration, bool, error) {
	err := w.enter("NextDue")
	defer w.twinStore.mu.Unlock()
	var next time.Time
	for _, at := range w.due {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return max(next.Sub(w.clock.Now()), 0), !next.IsZero(), err
}

func (w *twinWorker) Load(_ context.Context, rs []core.LoadRequest) ([]core.Loaded, error) {
	w.twinStore.mu.Lock()
	hold := w.holdLoad
	if hold != nil {
		w.heldLoads++
	}
	w.twinStore.mu.Unlock()
	if hold != nil {
		<-hold
	}
	err := w.enter("Load")
	defer w.twinStore.mu.Unlock()
	if err != nil {
		return nil, err
	}
	var out []core.Loaded
	for _, r := range rs {
		w.loads[r.Record]++
		if l, ok := w.twin.Load(r); ok {
			out = append(out, l)
		}
	}
	return out, nil
}

func (w *twinWorker) LoadEvents(_ context.Context, ranges []core.EventRange) ([]core.Event, error) {
	err := w.enter("LoadEvents")
	defer w.twinStore.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return w.twin.LoadEvents(ranges), nil
}

func (w *twinWorker) Flush(f *core.Flush, epoch int64, done func(core.FlushResult)) {
	w.twinStore.mu.Lock()
	hold := w.holdFlush
	w.pendingFlushes++
	w.twinStore.mu.Unlock()
	w.flushes <- func() {
		if hold != nil {
			<-hold
		}
		w.twinStore.mu.Lock()
		w.pendingFlushes--
		w.twin.Now = w.clock.Now()
		r := w.twin.Flush(w.id(), epoch, *f)
		switch {
		case r.Status != core.FlushGone || f.Then == core.Settle:
		case f.Then == core.Release:
			w.due[f.Record] = w.clock.Now()
		case !f.DueAt.IsZero():
			w.due[f.Record] = f.DueAt
		}
		w.twinStore.mu.Unlock()
		done(r)
	}
}

func (w *twinWorker) News(_ context.Context, records []int64) (int64, []core.News, error) {
	err := w.enter("News")
	defer w.twinStore.mu.Unlock()
	if err != nil {
		return 0, nil, err
	}
	news := make([]core.News, len(records))
	for i, r := range records {
		_, news[i] = w.twin.News(r)
	}
	return w.twin.Epoch(), news, nil
}

func (w *twinWorker) Registry(context.Context) (*core.Registry, error) {
	err := w.enter("Registry")
	defer w.twinStore.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return w.twin.Registry(w.local), nil
}

func (w *twinWorker) Join(_ context.Context, c core.Worker) (int64, error) {
	err := w.enter("Join")
	defer w.twinStore.mu.Unlock()
	if err != nil {
		return 0, err
	}
	id := w.twin.Join()
	w.beats[id] = &core.Beat{Worker: id, Lease: c.Lease}
	return id, nil
}

func (w *twinWorker) Renew(ctx context.Context, worker int64, _ []byte) error {
	w.twinStore.mu.Lock()
	hold := w.hold
	w.twinStore.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	err := w.enter("Renew")
	defer w.twinStore.mu.Unlock()
	if err != nil {
		return err
	}
	if w.ended[worker] {
		return keylinetype.ErrFenced
	}
	w.beats[worker].Beat++
	return nil
}

func (w *twinWorker) Beats(context.Context) ([]core.Beat, error) {
	err := w.enter("Beats")
	defer w.twinStore.mu.Unlock()
	if err != nil {
		return nil, err
	}
	var out []core.Beat
	for id, b := range w.beats {
		if !w.ended[id] {
			out = append(out, *b)
		}
	}
	all, err := sim.Leases{Twin: w.twin}.Beats(context.Background())
	for _, b := range all {
		if b.Gone {
			out = append(out, b)
		}
	}
	return out, err
}

func (w *twinWorker) MarkLost(_ context.Context, seen core.Beat) (bool, error) {
	err := w.enter("MarkLost")
	defer w.twinStore.mu.Unlock()
	if err != nil {
		return false, err
	}
	if w.ended[seen.Worker] || w.beats[seen.Worker].Beat != seen.Beat {
		return false, nil
	}
	w.ended[seen.Worker] = true
	w.twin.MarkLost(seen.Worker)
	return true, nil
}

func (w *twinWorker) Recover(context.Context) (int, error) {
	err := w.enter("Recover")
	defer w.twinStore.mu.Unlock()
	if err != nil {
		return 0, err
	}
	return w.twin.Recover(1 << 20), nil
}

func (w *twinWorker) Leave(_ context.Context, worker int64) error {
	err := w.enter("Leave")
	defer w.twinStore.mu.Unlock()
	if err != nil {
		return err
	}
	w.ended[worker] = true
	w.twin.Leave(worker)
	return nil
}

// LeaveLater keeps the claims: in these tests no lease ends after it.
func (w *twinWorker) LeaveLater(context.Context, int64) error {
	err := w.enter("LeaveLater")
	w.twinStore.mu.Unlock()
	return err
}

func (w *twinWorker) HandBackOrphans(_ context.Context, worker int64, held []core.Held) (int, error) {
	err := w.enter("HandBackOrphans")
	defer w.twinStore.mu.Unlock()
	if err != nil {
		return 0, err
	}
	return w.twin.HandBackOrphans(worker, held), nil
}

// through reports whether every consumer is at seq on every record.
func (s *twinStore) through(records []int64, seq int64, consumers ...int32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range records {
		for _, c := range consumers {
			if s.twin.Position(r, c) != seq {
				return false
			}
		}
	}
	return true
}
