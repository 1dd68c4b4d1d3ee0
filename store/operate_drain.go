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
// already. asked is false where it does not live: then nothing is written.
func (o *Operate) Drain(ctx context.Context, worker int64, actor, reason string) (asked, joined bool, err error) {
	// Two that ask at once: the second sees neither a worker to ask nor one that is asked. It looks again.
	for look := 0; look < 2 && err == nil && !asked; look++ {
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

// AwaitDrained waits until no incarnation of a worker's process lives; without
// wait it says how it stands. ErrNotFound where there is no such worker.
func (o *Operate) AwaitDrained(ctx context.Context, worker int64, wait bool) (e WorkerEnd, err error) {
	for pause := awaitFirst; ; pause = min(2*pause, awaitMost) {
		err := o.s.lease.QueryRow(ctx, o.s.q("operate_worker"), worker).Scan(&e.Name, &e.Status, &e.Last, &e.StillRunning)
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

// Workers reads the workers that live, those that were lost within the hour, and those whose claims are still to be freed.
func (o *Operate) Workers(ctx context.Context) ([]OverviewWorker, error) { return o.s.readWorkers(ctx) }
