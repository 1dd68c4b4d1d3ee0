package keyline

import (
	"context"
	"fmt"
	"time"

	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/store"
)

// Done is closed when a started worker has stopped: by Stop, because an
// operator drained it, or because the schema serves it no more; in the last case
// Stop returns an error that says so. A program that runs nothing else may end then.
func (w *Worker) Done() <-chan struct{} { return w.life.Done() }

// startDrains stops the worker when an operator asks for it, or when the schema has been migrated away from under it, as
// Stop does within the shutdown grace.
func (w *Worker) startDrains(ctx context.Context, p *parts) {
	ctx, w.hurry = context.WithCancel(context.WithoutCancel(ctx))
	w.drains.Go(func() {
		defer w.hurry()
		var cause error
		select {
		case <-p.supervisor.DrainAsked():
			w.cfg.Logger.Info("keyline worker drains: an operator asked for it", "worker", w.cfg.Name, "grace", w.cfg.ShutdownGrace.String())
		case err := <-p.store.Unserved():
			cause = fmt.Errorf("keyline: the worker ended: the schema does not serve it any more: %w", err)
			w.cfg.Logger.Error("keyline worker drains: the schema does not serve it any more", "worker", w.cfg.Name, "error", err, "grace", w.cfg.ShutdownGrace.String())
		case <-w.life.Done():
			return
		}
		grace, cancel := context.WithTimeout(ctx, w.cfg.ShutdownGrace)
		defer cancel()
		if _, err := w.halt(grace, p, cause); err != nil && cause == nil {
			w.cfg.Logger.Warn("keyline worker has drained, but not all went well", "worker", w.cfg.Name, "error", err)
		}
	})
}

// DrainOptions are the settings of Worker.Drain; the zero value is a good one.
type DrainOptions struct {
	// Within also waits for work that comes due within this time of there being
	// nothing else to do, such as a retry. Default 0: only for what is due.
	Within time.Duration
}

// DrainReport is what a drain did.
type DrainReport struct {
	Status
	// Drained is true where nothing was due any more; false where ctx ended, or somebody stopped the worker, before.
	Drained bool
}

// Drain delivers what is due and stops: for a scheduled command, or a test. It
// starts the worker, waits until nothing that it could take is due (sweeps of
// the registry, such as a backfill, included), and stops it within the shutdown grace, also where ctx ends before.
// What other workers hold is theirs, and what is appended meanwhile is delivered too, so that it need not end under steady traffic.
//
// The error is Start's or Stop's, or says that ctx ended.
func (w *Worker) Drain(ctx context.Context, opts DrainOptions) (report DrainReport, err error) {
	if w.cfg.Disabled {
		return report, wrong("Config.Disabled", "a worker that is disabled drains nothing")
	}
	if err := w.Start(ctx); err != nil {
		return report, err
	}
	idle, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(w.life, cancel)() //nolint:contextcheck // the worker's life ends it too
	err = w.awaitNothingDue(idle, w.parts, opts.Within)
	report.Drained = err == nil
	switch {
	case ctx.Err() != nil:
		err = fmt.Errorf("keyline: drain: %w", context.Cause(ctx))
	case idle.Err() != nil:
		err = nil // stopped by somebody
	}
	grace, cancelGrace := context.WithTimeout(context.WithoutCancel(ctx), w.cfg.ShutdownGrace)
	defer cancelGrace()
	status, stopErr := w.Stop(grace)
	report.Status = status
	if err == nil {
		err = stopErr
	}
	return report, err
}

// duePause is how long a drain waits for the claim loop to take what is due already.
const duePause = 10 * time.Millisecond

// awaitNothingDue waits until no sweep is left and nothing is due within a time.
// What the database does not answer is asked again until ctx ends.
func (w *Worker) awaitNothingDue(ctx context.Context, p *parts, within time.Duration) error {
	for {
		pause := duePause
		if swept, err := w.swept(ctx, p.store); err == nil && swept {
			// What this worker claims from here on is due to nobody else, and not yet done.
			claimed := p.supervisor.Claimed()
			if err := p.supervisor.WaitIdle(ctx); err != nil {
				return err
			}
			// What a sweep or an append has made due may not have woken the claim loop yet.
			next, ok, err := p.store.NextDue(ctx, p.supervisor.Hosted())
			if err == nil && (!ok || next > within) {
				if p.supervisor.Claimed() == claimed {
					return nil
				}
				next = 0 // look again when it is done
			}
			pause = max(pause, next)
		}
		if err := clock.Sleep(ctx, p.store.Clock(), pause); err != nil {
			return err
		}
	}
}

// swept does a chunk of what registry changes have left, and reports whether that was all.
func (w *Worker) swept(ctx context.Context, s *store.Store) (bool, error) {
	if _, err := s.Sweep(ctx); err != nil {
		return false, err
	}
	left, err := s.Sweeping(ctx)
	return !left, err
}
