package supervisor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/keylinehq/keyline/actors"
	"github.com/keylinehq/keyline/internal/core"
)

// Status is what a worker reports at its end.
type Status struct {
	// Completed and Failed are deliveries over the worker's life, by how their
	// handlers ended.
	Completed, Failed int64
	// Settled and HandedBack are records over the worker's life.
	Settled, HandedBack int64
	// StillRunning are the handlers that had not ended when the grace had. Their
	// claims are kept until the lease ends; nothing is charged for them.
	StillRunning []actors.Running
	// Left is true where the worker has signed off: recovery charges its records
	// nothing.
	Left bool
}

// Stop ends the worker gracefully: it claims nothing more, lets handlers finish
// until the grace has passed or ctx has ended, whichever is sooner, cancels the
// rest, hands back what is left without charging an attempt, and signs off. A
// handler that ignores its context goes on; it is reported.
//
// It may be called again: every call waits for the same end, or for its own
// context, and returns the same. The error says what could not be done; the
// worker is stopped all the same.
func (s *Supervisor) Stop(ctx context.Context) (Status, error) {
	s.life.mu.Lock()
	first := !s.life.stopping
	started := s.life.started
	s.life.stopping = true
	if started {
		s.life.abort(errStopped)
	}
	s.life.mu.Unlock()
	if !started {
		return Status{}, nil
	}
	<-s.life.ready
	if s.life.failed {
		return Status{}, nil
	}
	if first {
		s.shutDown(ctx) // bounded by ctx itself
		return s.life.status, s.life.err
	}
	select {
	case <-s.life.done:
		return s.life.status, s.life.err
	case <-ctx.Done():
		return Status{}, context.Cause(ctx)
	}
}

// shutDown is the body of the first Stop.
func (s *Supervisor) shutDown(ctx context.Context) {
	defer close(s.life.done)
	s.draining.Store(true)
	s.life.stopIntake()
	s.life.intake.Wait()

	// What has no seat yet is not begun any more; it goes back at the end.
	s.loader.drop()
	s.dropSuspects()
	s.table.each(func(p *place) { p.seat.Drain() })
	empty := func() bool { return s.room.n.Load() == 0 }
	if s.waitEmpty(ctx, s.cfg.Grace, empty) != nil {
		s.kill(errGraceEnded)
		// The context may have ended; the cancelled handlers still get a moment.
		_ = s.waitEmpty(context.WithoutCancel(ctx), s.cfg.CancelWait, empty)
	}
	running := s.running()
	s.leaving.Store(true)
	err := s.signOff(context.WithoutCancel(ctx), running)

	s.life.stopRun()
	s.life.loops.Wait()
	s.system.Root.Stop(s.rootPID)
	<-s.rootGone
	s.kill(errGraceEnded)
	s.system.Shutdown()
	s.env.Crew.Close()

	h := s.Health()
	st := Status{Settled: h.Settled, HandedBack: h.HandedBack, StillRunning: running, Left: err == nil}
	for _, c := range h.Consumers {
		st.Completed += c.Completed
		st.Failed += c.Failed
	}
	s.life.status, s.life.err = st, err
}

// waitEmpty waits until done, for d at most.
func (s *Supervisor) waitEmpty(ctx context.Context, d time.Duration, done func() bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	t := s.cfg.Clock.AfterFunc(d, func() { cancel(errGraceEnded) })
	defer t.Stop()
	return s.table.wait(ctx, done)
}

// running lists the handlers of this worker that still run.
func (s *Supervisor) running() []actors.Running {
	mine := map[core.Held]bool{}
	for _, h := range s.table.held(nil) {
		mine[h] = true
	}
	var out []actors.Running
	for _, r := range s.cfg.Pairs.Running() {
		if mine[r.Held] {
			out = append(out, r)
		}
	}
	return out
}

// signOff hands back what nothing here runs any more, and leaves. Whatever else
// this worker still holds is then recovered without a charge.
func (s *Supervisor) signOff(ctx context.Context, running []actors.Running) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t := s.cfg.Clock.AfterFunc(signOffTime, cancel)
	defer t.Stop()
	worker := s.Worker()
	if worker == 0 {
		worker = s.fencedWorker.Load()
	}
	if worker == 0 {
		return nil // never joined
	}
	if len(running) > 0 {
		return s.signOffRunning(ctx, worker, running)
	}
	if err := s.cfg.Leases.Leave(ctx, worker); err != nil {
		return fmt.Errorf("supervisor: sign off: %w", err)
	}
	if _, err := s.cfg.Leases.Recover(ctx); err != nil {
		return fmt.Errorf("supervisor: sign off: %w", err)
	}
	return nil
}

// signOffRunning keeps the claims of handlers that still run, so that nobody
// starts beside them before the lease has ended.
func (s *Supervisor) signOffRunning(ctx context.Context, worker int64, running []actors.Running) error {
	held := make([]core.Held, len(running))
	for i, r := range running {
		held[i] = r.Held
	}
	_, err := s.cfg.Leases.HandBackOrphans(ctx, worker, held)
	if err = errors.Join(err, s.cfg.Leases.LeaveLater(ctx, worker)); err != nil {
		return fmt.Errorf("supervisor: sign off: %w", err)
	}
	return nil
}

var errStopped = errors.New("supervisor: stopped")

// signOffTime bounds the last calls of a worker.
const signOffTime = 5 * time.Second

// WaitIdle returns when the worker has nothing to do: a claim that looked at
// everything has found nothing, and no record is resident. Work that is due
// later does not count.
func (s *Supervisor) WaitIdle(ctx context.Context) error {
	return s.table.wait(ctx, func() bool { return s.dry.Load() && s.room.n.Load() == 0 })
}

// Claimed is how many records this worker has claimed so far. It waits for a claim in
// flight: where it has not grown, none was carried out in between, not even one whose answer is on its way.
func (s *Supervisor) Claimed() int64 {
	s.claiming.Lock()
	defer s.claiming.Unlock()
	return s.stats.claimed.Load()
}
