package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// stuckAfter is how long a record waits before it counts as stuck: what is on its way is not.
const stuckAfter = time.Second

// StuckRecord is a record that waits, payload-free.
type StuckRecord struct {
	Tenant string `json:"tenant"`
	Record string `json:"record"`
	// Reason is ready (due, and nobody has it), claimed, backoff or parked, as in Why.
	Reason string `json:"reason"`
	// Since is when it came due, was claimed, or first failed.
	Since *time.Time `json:"since"`
	// Consumer failed Attempt times with ErrorCode, where the reason is backoff or parked. A viewer is told 0 and "" of an event of an
	// internal type.
	Consumer      string     `json:"consumer"`
	Attempt       int        `json:"attempt"`
	ErrorCode     string     `json:"error_code"`
	NextAttemptAt *time.Time `json:"next_attempt_at"`
	WorkerID      *int64     `json:"worker_id"` // that holds it
	Worker        string     `json:"worker"`
}

// Stuck reads the records that have waited longest, at most so many. It is cheap at any size: it
// looks at a few thousand of those that wait. With hideInternal it does not say what an event of an internal type failed with.
func (o *Operate) Stuck(ctx context.Context, limit int, hideInternal bool) ([]StuckRecord, error) {
	var list []StuckRecord
	err := o.snapshot(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, o.s.q("operate_thrifty")); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, o.s.q("operate_stuck"), limit, stuckAfter.Seconds(), healthMost, hideInternal)
		if err != nil {
			return err
		}
		list, err = pgx.CollectRows(rows, pgx.RowToStructByPos[StuckRecord])
		return err
	})
	return list, translate("read what is stuck", err)
}
