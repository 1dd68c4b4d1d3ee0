package supervisor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// claimLoop takes records with work.
type claimLoop struct {
	s    *Supervisor
	pace *pace
}

func newClaimLoop(s *Supervisor) *claimLoop {
	return &claimLoop{s: s, pace: newPace(paceConfig{
		minBatch: min(50, s.cfg.MaxBatch), maxBatch: min(s.cfg.MaxBatch, max(s.cfg.MaxResident/4, 1)),
		poll: 5 * time.Millisecond, moreEvery: 500 * time.Millisecond, calm: 1000,
	})}
}

// pumpWakes passes wakes on to where the claim loop selects.
func (s *Supervisor) pumpWakes(ctx context.Context) error {
	for {
		w, err := s.cfg.Wakes.Wait(ctx)
		if err != nil {
			return fmt.Errorf("wait for a wake: %w", err)
		}
		s.health.worked("wakes")
		s.stats.woken(w.Cause)
		s.wakes.put(w)
	}
}

// callMore calls for others when the claim loop says so.
func (s *Supervisor) callMore(ctx context.Context) error {
	for {
		select {
		case <-s.more:
			s.cfg.Wakes.More()
		case <-ctx.Done():
			return nil
		}
	}
}

func (l *claimLoop) run(ctx context.Context) error {
	timer := l.s.cfg.Clock.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		inc := l.s.inc.Load()
		if inc == nil { // fenced, or not joined yet
			select {
			case <-l.s.rejoined:
				l.pace.wakeUp(Wake{Unbounded: true})
			case <-ctx.Done():
			}
			continue
		}
		a := l.pace.decide(l.s.cfg.Clock.Mono(), l.s.room.free())
		if a.busy {
			l.s.cfg.Wakes.Busy()
			l.s.dry.Store(false)
		}
		if a.more {
			signal(l.s.more)
		}
		if a.limit == 0 {
			l.wait(ctx, timer, a)
			continue
		}
		l.s.dry.Store(false)
		if err := l.claim(ctx, inc, a); err != nil {
			l.pace.failed(l.s.cfg.Clock.Mono())
			return err
		}
	}
	return nil
}

// wait sleeps until something happens.
func (l *claimLoop) wait(ctx context.Context, timer clock.Timer, a action) {
	if a.room > 0 {
		l.s.room.await(a.room)
	}
	var c <-chan time.Time
	if a.until != never {
		timer.Reset(max(a.until-l.s.cfg.Clock.Mono(), 0))
		c = timer.C()
	}
	select {
	case <-l.s.wakes.c:
		if w, any := l.s.wakes.take(); any {
			l.pace.wakeUp(w)
		}
	case <-l.s.room.c:
	case <-l.s.due.c:
		l.dueAgain()
	case <-l.s.rejoined:
		l.pace.wakeUp(Wake{Unbounded: true})
	case <-c:
	case <-ctx.Done():
	}
}

// dueAgain: a hand-back of ours is due before what we have told the wakes.
func (l *claimLoop) dueAgain() {
	at, any := l.s.due.take()
	if !any {
		return
	}
	d := max(at.Sub(l.s.cfg.Clock.Now()), 0)
	if l.pace.dueAgain(l.s.cfg.Clock.Mono(), d) {
		l.s.cfg.Wakes.Dry(d, true)
	}
}

// claim makes the calls that were decided on.
func (l *claimLoop) claim(ctx context.Context, inc *incarnation, a action) error {
	if len(a.records) > 0 {
		return l.claimRecords(ctx, inc, a)
	}
	began := l.s.cfg.Clock.Mono()
	got, err := l.call(ctx, inc, core.ClaimRequest{Limit: a.limit, Unbounded: a.unbounded})
	if err != nil {
		return err
	}
	now := l.s.cfg.Clock.Mono()
	busy, dry := l.pace.claimed(now, now-began, a, got)
	if busy {
		l.s.cfg.Wakes.Busy()
	}
	if dry {
		return l.goDry(ctx)
	}
	return nil
}

// claimRecords claims what a wake has named.
func (l *claimLoop) claimRecords(ctx context.Context, inc *incarnation, a action) error {
	got := 0
	for _, record := range a.records {
		n, err := l.call(ctx, inc, core.ClaimRequest{Limit: 1, Record: record})
		if err != nil {
			return err
		}
		got += n
	}
	if l.pace.claimedRecords(l.s.cfg.Clock.Mono(), a, got) {
		l.s.cfg.Wakes.Busy()
	}
	if l.pace.dry {
		l.s.dry.Store(true)
		l.s.table.notify()
	}
	return nil
}

// goDry says that there is nothing to do. What this worker hands back from here
// on is compared with what is said. Where it was said before, and nothing has
// come since, the due time is not asked for again: what others hand back in the
// meantime is theirs to wait for, and is asked after once a lease.
func (l *claimLoop) goDry(ctx context.Context) error {
	d, ok, known := l.pace.stillDry(l.s.cfg.Clock.Mono())
	if !known {
		l.s.due.take()
		var err error
		if d, ok, err = l.s.cfg.Deliveries.NextDue(ctx, l.s.Hosted()); err != nil {
			l.s.noticeFence(err)
			return fmt.Errorf("next due time: %w", err)
		}
		l.pace.saidDry(l.s.cfg.Clock.Mono(), d, ok)
	}
	l.s.cfg.Wakes.Dry(d, ok)
	l.s.dry.Store(true)
	l.s.table.notify()
	return nil
}

// call makes one claim and passes on what it got.
func (l *claimLoop) call(ctx context.Context, inc *incarnation, r core.ClaimRequest) (int, error) {
	r.Worker, r.Hosted = inc.worker, l.s.Hosted()
	l.s.claiming.Lock()
	defer l.s.claiming.Unlock()
	var claims []core.Claim
	var loaded []core.Loaded
	var err error
	registry := l.s.registry.Load() // from before the load
	if r.Record != 0 {
		claims, loaded, err = l.s.cfg.Deliveries.ClaimRecord(ctx, r, l.s.cfg.LoadLimit)
	} else {
		claims, err = l.s.cfg.Deliveries.Claim(ctx, r)
	}
	l.s.stats.claims.Add(1)
	if err != nil {
		if l.s.gen() == inc.gen { // it may be late news of an incarnation before
			l.s.noticeFence(err)
		}
		if errors.Is(err, keylinetype.ErrUnavailable) || ctx.Err() != nil {
			signal(l.s.orphans) // it may have been carried out
		}
		return 0, fmt.Errorf("claim: %w", err)
	}
	l.s.health.worked("claims")
	if l.s.gen() != inc.gen {
		return 0, nil // fenced meanwhile: they are recovered with the rest
	}
	l.s.stats.claimed.Add(int64(len(claims)))
	l.s.room.enter(len(claims))
	if !l.s.takeLoaded(inc.gen, registry, claims, loaded) {
		l.s.take(inc.gen, claims)
	}
	return len(claims), nil
}

// takeLoaded seats claims that have been read already. false: they are for the
// loader, as they were not, are suspects, or know a newer registry than this worker.
func (s *Supervisor) takeLoaded(gen uint64, registry *core.Registry, claims []core.Claim, loaded []core.Loaded) bool {
	if len(loaded) < len(claims) || newest(loaded) > registry.Epoch ||
		slices.ContainsFunc(claims, func(c core.Claim) bool { return c.Crashes > 0 }) {
		return false
	}
	items := make([]claimItem, len(claims))
	for i, c := range claims {
		items[i] = claimItem{c, gen}
	}
	s.seatAll(registry, byRecord(loaded), items)
	return true
}

// take sends claims to the loader: suspects one at a time.
func (s *Supervisor) take(gen uint64, claims []core.Claim) {
	healthy := claims[:0]
	var suspect []core.Claim
	for _, c := range claims {
		if c.Crashes > 0 {
			suspect = append(suspect, c)
		} else {
			healthy = append(healthy, c)
		}
	}
	if len(healthy) > 0 {
		s.loader.claimed(gen, healthy...)
	}
	if len(suspect) == 0 {
		return
	}
	s.suspectMu.Lock()
	for _, c := range suspect {
		s.suspects.add(claimItem{c, gen})
	}
	// They must not fill the worker: those beyond half of it are left to the
	// orphan sweep, for another worker or another time.
	excess := len(s.suspects.excess(max(s.cfg.MaxResident/2, 1)))
	s.suspectMu.Unlock()
	s.room.leave(excess)
	s.nextSuspect()
}

// nextSuspect loads the next suspect, if the place is free.
func (s *Supervisor) nextSuspect() {
	s.suspectMu.Lock()
	defer s.suspectMu.Unlock()
	c, ok, look := s.suspects.next(s.cfg.Clock.Mono())
	if ok {
		s.loader.claimed(c.gen, c.claim)
		if len(s.suspects.waiting) > 0 {
			look = s.suspects.yield
		}
	}
	if look > 0 {
		if s.yielded != nil {
			s.yielded.Stop()
		}
		s.yielded = s.cfg.Clock.AfterFunc(look, s.nextSuspect)
	}
}

// suspectEnded frees the suspects' place if this record had it.
func (s *Supervisor) suspectEnded(record, token int64) {
	s.suspectMu.Lock()
	freed := s.suspects.ended(record, token)
	s.suspectMu.Unlock()
	if freed {
		s.nextSuspect()
	}
}

// dropSuspects forgets those in wait.
func (s *Supervisor) dropSuspects() {
	s.suspectMu.Lock()
	dropped := len(s.suspects.drop())
	if s.yielded != nil {
		s.yielded.Stop()
	}
	s.suspectMu.Unlock()
	s.room.leave(dropped)
}

// Held lists the claims that something here holds: those on their way to a
// seat, those on one, and those whose handlers still run. Everything else that
// is claimed by this worker is an orphan.
func (s *Supervisor) Held() []core.Held {
	// In the order in which a claim moves on, or one could be missed between two looks.
	var held []core.Held
	s.suspectMu.Lock()
	for _, c := range s.suspects.waiting {
		held = append(held, core.Held{Record: c.claim.Record, Token: c.claim.Token})
	}
	s.suspectMu.Unlock()
	held = s.loader.held(held)
	held = s.table.held(held)
	for _, r := range s.cfg.Pairs.Running() {
		held = append(held, r.Held)
	}
	return held
}
