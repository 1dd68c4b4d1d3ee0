package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/internal/clock"
)

// What a registry change leaves to be done on its records, kept in
// consumers.sweep until it is done.
const (
	sweepWake     = "wake"
	sweepBackfill = "backfill"
	sweepClear    = "clear"
)

// sweepChunk is how many records one transaction of a sweep locks: appenders
// to them wait for it.
const sweepChunk = 500

// Sweep does one chunk of what registry changes have left to be done. Any
// worker may call it, at any time: two never do the same consumer's at once.
//
// more: there is more to do now. Without it, call again within seconds: there may be
// records left that somebody has locked, and other processes change the registry too (KeepSweeping does).
func (s *Store) Sweep(ctx context.Context) (more bool, err error) {
	var w dueWalk
	for done := false; !done; {
		if done, err = w.step(ctx, s); err != nil {
			w.giveUp(s)
			return false, err
		}
	}
	more, _, err = s.sweep(ctx)
	return more, err
}

// sweep is Sweep that says, too, whether records are left that somebody has locked.
func (s *Store) sweep(ctx context.Context) (more, left bool, err error) {
	waiting := []int32{}
	for {
		var (
			consumer int32
			outcome  string
		)
		err := autocommit(ctx, s.hot, s.q("sweep"), []any{sweepChunk, waiting}, one(&consumer, &outcome))
		switch {
		case err != nil:
			return false, false, translate("sweep", err)
		case outcome == "":
			return false, len(waiting) > 0, nil
		case outcome == "waiting":
			waiting = append(waiting, consumer)
			continue
		case outcome == "backfilled":
			return true, false, s.activate(ctx, consumer)
		}
		return true, false, nil
	}
}

// How often a worker looks for sweeps of which nothing has told it.
const (
	sweepSeldom = 15 * time.Second
	// sweepSoon is for what is locked or has failed, and where nothing tells of a change.
	sweepSoon = time.Second
	// walkPause is between two chunks of a look at all that is not due: a worker makes it at
	// its start, when there are more urgent things to do.
	walkPause = 100 * time.Millisecond
)

// KeepSweeping sweeps until ctx ends: when AskSweep says so, and now and then. told says
// whether changes of the registry are heard of here, by notifications.
func (s *Store) KeepSweeping(ctx context.Context, told func() bool) {
	timer := s.clock.NewTimer(time.Hour)
	defer timer.Stop()
	var walk dueWalk
	for ctx.Err() == nil {
		timer.Stop()
		looked := s.clock.Mono()
		walked, walkErr := walk.step(ctx, s)
		more, left, err := s.sweep(ctx)
		err = errors.Join(walkErr, err)
		if err != nil && ctx.Err() == nil {
			s.log.Warn("sweep is tried again", "error", err)
		}
		if more && err == nil {
			continue
		}
		pause := sweepSeldom
		switch {
		case left, err != nil, !told():
			pause = sweepSoon
		case !walked:
			pause = walkPause
		}
		timer.Reset(pause)
		select {
		case <-s.sweepAsked:
			// Saturated workers call twice a second each: that is no reason to look as often, nor to walk more slowly.
			_ = clock.Sleep(ctx, s.clock, looked+min(pause, sweepSoon)-s.clock.Mono()) // where ctx ends, so does the loop
		case <-timer.C():
		case <-ctx.Done():
		}
	}
}

// AskSweep says that the registry may have changed.
func (s *Store) AskSweep() {
	select {
	case s.sweepAsked <- struct{}{}:
	default:
	}
}

// Sweeping reports whether a registry change has left something to be done, by whomever.
func (s *Store) Sweeping(ctx context.Context) (is bool, err error) {
	err = s.hot.QueryRow(ctx, s.q("sweeping")).Scan(&is)
	return is, translate("look for sweeps", err)
}

// dueWalk makes work due that waits only because the database's clock was set back
// after it was appended. Backoffs end later by the step, at most.
//
// What happened before a worker came nobody may have seen: it looks once, for what bears a time to come itself. A time
// that is due for no reason that the database has may be somebody's pause, such as an open breaker's.
type dueWalk struct {
	walking bool
	seen    bool  // the clock was seen to step
	from    int64 // the last record that was looked at, while walking
}

// step does one chunk, if there is a reason to walk; done: there is none, or no more.
func (w *dueWalk) step(ctx context.Context, s *Store) (done bool, err error) {
	if !w.walking {
		seen := s.clock.setBack.Swap(false) // before looking: a step that comes meanwhile sets it again
		if !s.unlooked.Swap(false) && !seen {
			return true, nil
		}
		*w = dueWalk{walking: true, seen: seen}
	}
	var last *int64
	var made int
	var quiet bool
	err = s.pinned(ctx, s.hot, "begin isolation level read committed", func(b *pgx.Batch) {
		b.Queue(s.q("due_after_step"), w.from, sweepChunk, w.seen).QueryRow(func(row pgx.Row) error { return row.Scan(&last, &made, &quiet) })
	})
	if err != nil {
		return false, translate("make work due after a step of the clock", err)
	}
	if made > 0 {
		s.log.Warn("work was due in the future without a reason: the database's clock was set back", "records", made)
	}
	if last == nil {
		w.walking = false
		return true, nil
	}
	w.from = *last
	return false, nil
}

// giveUp leaves the reason to walk to the next one.
func (w *dueWalk) giveUp(s *Store) {
	if w.seen {
		s.clock.setBack.Store(true)
	} else {
		s.unlooked.Store(true)
	}
}

// errNotBackfilled ends an activation that another worker or an operator has overtaken.
var errNotBackfilled = errors.New("the consumer is no longer being backfilled")

// activate ends a backfill: every record has its row by now, or has never been
// flushed, so that a consumer without a row stands at its beginning.
func (s *Store) activate(ctx context.Context, consumer int32) error {
	err := s.changeRegistry(ctx, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, s.q("activate"), consumer)
		if err == nil && tag.RowsAffected() == 0 {
			return errNotBackfilled
		}
		return err
	})
	if err != nil && !errors.Is(err, errNotBackfilled) {
		return fmt.Errorf("activate consumer %d: %w", consumer, err)
	}
	return nil
}
