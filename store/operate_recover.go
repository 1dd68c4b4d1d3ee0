package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/internal/clock"
)

// Recovered is what a recovery found.
type Recovered struct {
	// Workers were marked lost by it, Claims were freed.
	Workers []int64 `json:"workers"`
	Claims  int     `json:"claims"`
}

// silentWorker is a live worker that has not renewed for longer than its lease.
type silentWorker struct {
	ID, Beat, LeaseMS int64
}

// Recover marks workers lost that stay silent for a whole lease under this
// process's eyes, and frees every claim whose holder is not live. It takes no
// longer than a moment where no worker seems silent, and the longest lease of those that do otherwise.
func (o *Operate) Recover(ctx context.Context, actor, reason string) (Recovered, error) {
	out := Recovered{Workers: []int64{}}
	silent, err := o.silent(ctx)
	if err != nil {
		return out, err
	}
	if silent, err = o.watch(ctx, silent); err != nil {
		return out, err
	}
	for _, w := range silent {
		var marked bool
		if err := autocommit(ctx, o.s.lease, o.s.q("operate_mark_lost"), []any{w.ID, w.Beat, actor, reason}, one(&marked)); err != nil {
			return out, translate("mark lost", err)
		}
		if marked {
			out.Workers = append(out.Workers, w.ID)
		}
	}
	for {
		var n int
		if err := autocommit(ctx, o.s.lease, o.s.q("operate_recover"), []any{recoverChunk, actor, reason}, one(&n)); err != nil {
			return out, translate("recover", err)
		}
		out.Claims += n
		if n < recoverChunk {
			return out, nil
		}
	}
}

// leastGap is how long a pause between two looks may be at any rate: what is busy takes a moment.
const leastGap = time.Second

// watch looks at silent workers for the longest of their leases, and returns those that have stayed silent. Watching decides, not the
// clock of either side: a worker whose beat moves meanwhile lives. And only what was seen without a gap counts: while the
// database was away, or this process, nobody can have been heard.
func (o *Operate) watch(ctx context.Context, silent []silentWorker) ([]silentWorker, error) {
	if len(silent) == 0 {
		return nil, nil
	}
	lease := func(w silentWorker) time.Duration { return time.Duration(w.LeaseMS) * time.Millisecond }
	compare := func(a, b silentWorker) int { return cmp.Compare(a.LeaseMS, b.LeaseMS) }
	longest, shortest := lease(slices.MaxFunc(silent, compare)), lease(slices.MinFunc(silent, compare))
	gap := max(shortest*2/3, leastGap)
	began, last := o.s.clock.Mono(), o.s.clock.Mono()
	for len(silent) > 0 && last-began < longest {
		if err := clock.Sleep(ctx, o.s.clock, min(shortest/3, began+longest-last)); err != nil {
			return nil, err
		}
		now := o.s.clock.Mono()
		still, err := o.silent(ctx)
		if err != nil {
			return nil, fmt.Errorf("the watch was broken off, and nobody was marked: %w", err)
		}
		silent = slices.DeleteFunc(silent, func(w silentWorker) bool { return !slices.Contains(still, w) })
		if end := o.s.clock.Mono(); now-last > gap || end-now > gap {
			now, began = end, end // it watches anew
		}
		last = now
	}
	return silent, nil
}

func (o *Operate) silent(ctx context.Context) ([]silentWorker, error) {
	rows, err := o.s.lease.Query(ctx, o.s.q("operate_silent"))
	if err != nil {
		return nil, translate("read workers", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[silentWorker])
	return list, translate("read workers", err)
}
