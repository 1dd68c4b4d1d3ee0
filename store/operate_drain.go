package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/keylinetype"
)

// Drain asks a worker to drain, with the audit, or joins whoever has asked
// already. asked is the one that was: another, where the worker's process has fenced itself and lives on as that; 0 where none lives,
// and then nothing is written.
func (o *Operate) Drain(ctx context.Context, worker int64, actor, reason string) (asked int64, joined bool, err error) {
	// Two that ask at once: the second sees neither a worker to ask nor one that is asked. It looks again.
	for look := 0; look < 2 && err == nil && asked == 0; look++ {
		err = autocommit(ctx, o.s.lease, o.s.q("operate_drain"), []any{worker, actor, reason}, one(&asked, &joined))
	}
	return asked, joined, translate("drain worker", err)
}

// WorkerEnd is how a worker stands whose end somebody waits for.
type WorkerEnd struct {
	Name   string
	Status string // its own
	Last   string // of the last incarnation of its process
	// StillRunning is true where it has left with handlers that still run.
	StillRunning bool
}

// AwaitDrained waits until no incarnation of the process of a worker that was asked lives; without
// wait it says how a worker stands, ErrNotFound where there is none.
func (o *Operate) AwaitDrained(ctx context.Context, worker int64, wait bool) (e WorkerEnd, err error) {
	for pause := awaitFirst; ; pause = min(2*pause, awaitMost) {
		err := o.s.lease.QueryRow(ctx, o.s.q("operate_worker"), worker).Scan(&e.Name, &e.Status, &e.Last, &e.StillRunning)
		if errors.Is(err, pgx.ErrNoRows) && wait {
			return e, nil // it has ended, and retention has taken what told of it
		}
		if errors.Is(err, pgx.ErrNoRows) {
			return e, fmt.Errorf("worker %d: %w", worker, keylinetype.ErrNotFound)
		}
		if err != nil {
			return e, translate("await drained worker", err)
		}
		if !wait || e.Status != "live" && e.Last != "live" {
			return e, nil
		}
		if err := clock.Sleep(ctx, o.s.clock, pause); err != nil {
			return e, fmt.Errorf("worker %d has not left yet: %w", worker, err)
		}
	}
}
