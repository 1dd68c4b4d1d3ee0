package store

import (
	"context"
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
	var longest time.Duration
	for _, w := range silent {
		longest = max(longest, time.Duration(w.LeaseMS)*time.Millisecond)
	}
	// Watching decides, not the clock of either side: a worker whose beat moves meanwhile lives.
	if len(silent) > 0 {
		if err := clock.Sleep(ctx, o.s.clock, longest); err != nil {
			return out, err
		}
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

func (o *Operate) silent(ctx context.Context) ([]silentWorker, error) {
	rows, err := o.s.lease.Query(ctx, o.s.q("operate_silent"))
	if err != nil {
		return nil, translate("read workers", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[silentWorker])
	return list, translate("read workers", err)
}
