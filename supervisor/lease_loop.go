package supervisor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/keylinetype"
)

// errTrustEnded: the lease could not be renewed in time.
var errTrustEnded = fmt.Errorf("lease not renewed in time: %w", keylinetype.ErrFenced)

// leaseLoop joins, renews, and, when the lease is lost, fences and joins again
// as a new incarnation.
func (s *Supervisor) leaseLoop(ctx context.Context) error {
	for ctx.Err() == nil {
		inc := s.inc.Load()
		if inc == nil {
			if err := s.join(ctx); err != nil {
				return err
			}
			continue
		}
		cause := s.holdLease(ctx, inc)
		if s.leaving.Load() { // by its own wish
			<-ctx.Done()
		}
		if ctx.Err() != nil {
			return nil
		}
		s.fence(ctx, inc, cause)
		if s.draining.Load() { // a stopping worker does not come back
			<-ctx.Done()
		}
	}
	return nil
}

// join registers a new incarnation, after the old one has left.
func (s *Supervisor) join(ctx context.Context) error {
	if err := s.leaveOld(ctx); err != nil {
		return err
	}
	begun := s.cfg.Clock.Mono()
	id, err := s.cfg.Leases.Join(ctx, s.cfg.Worker)
	if err != nil {
		return fmt.Errorf("join: %w", err)
	}
	s.lastGen++
	s.cfg.Joined(id)
	s.inc.Store(&incarnation{worker: id, gen: s.lastGen, joined: begun})
	s.health.worked("lease")
	s.joinOnce.Do(func() { close(s.joined) })
	signal(s.rejoined)
	return nil
}

// leaveOld says of the incarnation before that it has fenced itself: recovery
// then charges its records no crash.
func (s *Supervisor) leaveOld(ctx context.Context) error {
	old := s.fencedWorker.Load()
	if old == 0 {
		return nil
	}
	if err := s.cfg.Leases.Leave(ctx, old); err != nil && !errors.Is(err, keylinetype.ErrFenced) {
		return fmt.Errorf("leave as worker %d: %w", old, err)
	}
	s.fencedWorker.Store(0)
	return nil
}

// renewal is a renewal in flight.
type renewal struct {
	begun  time.Duration
	answer chan error
	cancel context.CancelFunc
}

func (s *Supervisor) renew(ctx context.Context, worker int64) *renewal {
	ctx, cancel := context.WithCancel(ctx)
	r := &renewal{begun: s.cfg.Clock.Mono(), answer: make(chan error, 1), cancel: cancel}
	state := s.published()
	s.life.loops.Go(func() {
		r.answer <- guard(func() error { return s.cfg.Leases.Renew(ctx, worker, state) })
	})
	return r
}

// holdLease renews until the lease is lost and returns why.
func (s *Supervisor) holdLease(ctx context.Context, inc *incarnation) error {
	l := lease{length: s.cfg.Lease, every: s.cfg.Renew, begun: inc.joined}
	l.due = l.begun + l.every
	timer := s.cfg.Clock.NewTimer(time.Hour)
	defer timer.Stop()
	flight := &renewal{} // its answer never comes
	defer func() {
		if flight.cancel != nil {
			flight.cancel()
		}
	}()
	for {
		now := s.cfg.Clock.Mono()
		switch {
		case !l.trusted(now):
			return errTrustEnded
		case flight.answer == nil && now >= l.due:
			flight = s.renew(ctx, inc.worker)
			continue
		}
		wake := l.ends()
		if flight.answer == nil {
			wake = min(wake, l.due)
		}
		timer.Reset(wake - now)
		select {
		case err := <-flight.answer:
			flight.cancel()
			if errors.Is(err, keylinetype.ErrFenced) {
				return err
			}
			if err == nil {
				l.renewed(flight.begun)
				s.health.worked("lease")
			} else {
				l.failed(s.cfg.Clock.Mono())
				s.health.failed("lease", err)
			}
			flight = &renewal{}
		case <-timer.C():
		case f := <-s.fenceReq:
			return f.cause
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// fence gives up everything that was claimed by an incarnation: no new claim
// counts, every handler's context is cancelled, every record actor ends. Handlers
// that go on are known to Pairs: nothing starts beside them.
func (s *Supervisor) fence(ctx context.Context, inc *incarnation, cause error) {
	s.stats.fenced.Add(1)
	s.fencedWorker.Store(inc.worker)
	s.inc.Store(nil)
	s.cfg.Fenced(inc.worker)
	s.loader.drop()
	s.dropSuspects()
	s.table.each(func(p *place) { p.seat.Fence(inc.gen) })
	// Not before: whoever takes the log may keep it waiting, while another worker runs what this one has lost.
	s.cfg.Log.Error("worker is fenced", "worker", inc.worker, "cause", cause)
	// No error: ctx ends with the whole worker.
	_ = s.table.wait(ctx, func() bool { return s.table.of(inc.gen) == 0 })
	select { // what was asked for the old incarnation is done
	case <-s.fenceReq:
	default:
	}
}

// observerLoop looks for workers that are lost, and frees what they had.
func (s *Supervisor) observerLoop() func(context.Context) error {
	every := s.cfg.Lease / 3
	o := &observer{grace: s.cfg.StaleGrace, gap: s.cfg.Lease * 2 / 3}
	return func(ctx context.Context) error {
		o.forget() // after a failure: not connected all along
		for {
			if clock.Sleep(ctx, s.cfg.Clock, every) != nil {
				return nil
			}
			inc := s.inc.Load()
			if inc == nil {
				o.forget()
				continue
			}
			o.self = inc.worker
			if err := s.observe(ctx, o); err != nil {
				return err
			}
			s.health.worked("observer")
		}
	}
}

func (s *Supervisor) observe(ctx context.Context, o *observer) error {
	begin := s.cfg.Clock.Mono()
	beats, err := s.cfg.Leases.Beats(ctx)
	if err != nil {
		return fmt.Errorf("read beats: %w", err)
	}
	claims := false // of workers that are gone
	live := beats[:0:0]
	for _, b := range beats {
		if b.Gone {
			claims = true
			continue
		}
		live = append(live, b)
		if b.Worker == o.self && b.Drain {
			s.drainOnce.Do(func() { close(s.drainAsked) })
		}
	}
	for _, b := range o.look(begin, s.cfg.Clock.Mono(), live) {
		marked, err := s.cfg.Leases.MarkLost(ctx, b)
		if err != nil {
			return fmt.Errorf("mark worker %d lost: %w", b.Worker, err)
		}
		if marked {
			claims = true
			s.stats.lost.Add(1)
			s.cfg.Log.Warn("worker is lost", "worker", b.Worker)
		}
	}
	if !claims {
		return nil
	}
	n, err := s.cfg.Leases.Recover(ctx)
	if err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	s.stats.recovered.Add(int64(n))
	return nil
}

// orphanLoop hands back claims that nothing here holds: once a lease, and after
// a claim whose outcome is not known.
func (s *Supervisor) orphanLoop(ctx context.Context) error {
	timer := s.cfg.Clock.NewTimer(s.cfg.Lease)
	defer timer.Stop()
	for {
		select {
		case <-timer.C():
		case <-s.orphans:
			// Not at once: the lost answer's statement may still be on its way.
			if clock.Sleep(ctx, s.cfg.Clock, orphanPause) != nil {
				return nil
			}
		case <-ctx.Done():
			return nil
		}
		if inc := s.inc.Load(); inc != nil {
			if err := s.sweepOrphans(ctx, inc.worker); err != nil {
				signal(s.orphans)
				return err
			}
			s.health.worked("orphans")
		}
		timer.Reset(s.cfg.Lease)
	}
}

// orphanPause is how long after a claim with an unknown outcome its orphans are
// looked for.
const orphanPause = 1500 * time.Millisecond

func (s *Supervisor) sweepOrphans(ctx context.Context, worker int64) error {
	s.claiming.Lock()
	defer s.claiming.Unlock()
	n, err := s.cfg.Leases.HandBackOrphans(ctx, worker, s.Held())
	if err != nil {
		return fmt.Errorf("hand back orphans: %w", err)
	}
	s.stats.orphans.Add(int64(n))
	return nil
}

// refreshDue tells the claim loop of due times that others have made meanwhile.
func (s *Supervisor) refreshDue(ctx context.Context) error {
	d, ok, err := s.cfg.Deliveries.NextDue(ctx, s.Hosted())
	if err != nil {
		return fmt.Errorf("next due time: %w", err)
	}
	if ok {
		s.due.offer(s.cfg.Clock.Now().Add(d))
	}
	return nil
}
