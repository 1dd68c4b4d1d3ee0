package store

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// EventTrace is what the database knows of how an event went, payload-free.
type EventTrace struct {
	EventView
	// Traceparent is the trace context of its append; "" where it was appended outside of any trace.
	Traceparent string           `json:"traceparent"`
	Consumers   []TracedDelivery `json:"consumers"`
}

// TracedDelivery is one consumer's delivery of the event.
type TracedDelivery struct {
	Consumer string `json:"consumer"`
	State    string `json:"state"`
	// Attempt is the run that is under way or the last that failed, where its state keeps one.
	Attempt       int        `json:"attempt"`
	NextAttemptAt *time.Time `json:"next_attempt_at"`
	ErrorCode     string     `json:"error_code"`
	// WorkerID holds the record now.
	WorkerID *int64 `json:"worker_id"`
	Worker   string `json:"worker"`
	// Failures are the runs that failed, as far as retention has kept them.
	Failures   []TracedFailure   `json:"failures"`
	DeadLetter *TracedDeadLetter `json:"dead_letter"`
	Skips      []TracedSkip      `json:"skips"`
	Acts       []TracedAct       `json:"acts"`
}

// TracedFailure is a run that failed. Messages are what handlers say.
type TracedFailure struct {
	Attempt      int       `json:"attempt"`
	At           time.Time `json:"at"`
	ErrorCode    string    `json:"error_code"`
	ErrorMessage string    `json:"error_message"`
	WorkerID     *int64    `json:"worker_id"`
}

// TracedDeadLetter is what became of a delivery that was given up.
type TracedDeadLetter struct {
	ID         int64      `json:"id"`
	Status     string     `json:"status"`
	Reason     string     `json:"reason"`
	Attempt    int        `json:"attempt"`
	ErrorCode  string     `json:"error_code"`
	FailedAt   time.Time  `json:"failed_at"`
	DueAt      *time.Time `json:"due_at"`
	ResolvedAt *time.Time `json:"resolved_at"`
	ResolvedBy string     `json:"resolved_by"`
	Resolution string     `json:"resolution"`
}

// TracedSkip is why a delivery was passed over.
type TracedSkip struct {
	Attempt int       `json:"attempt"`
	At      time.Time `json:"at"`
	Code    string    `json:"code"`
	Reason  string    `json:"reason"`
}

// TracedAct is what an operator asked for.
type TracedAct struct {
	Command   int64      `json:"command"`
	Kind      string     `json:"kind"`
	At        time.Time  `json:"at"`
	Actor     string     `json:"actor"`
	Reason    string     `json:"reason"`
	AppliedAt *time.Time `json:"applied_at"`
	Outcome   string     `json:"outcome"`
}

// Trace reads how an event went; ErrNotFound where there is none.
func (o *Operate) Trace(ctx context.Context, id uuid.UUID) (v EventTrace, err error) {
	err = o.snapshot(ctx, func(tx pgx.Tx) error {
		if v.EventView, err = o.inspectEvent(ctx, tx, id); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, o.s.q("operate_traceparent"), id).Scan(&v.Traceparent); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, o.s.q("operate_trace"), id)
		if err != nil {
			return err
		}
		v.Consumers, err = pgx.CollectRows(rows, pgx.RowToStructByPos[TracedDelivery])
		return err
	})
	return v, foundOr(err, "event %s", id)
}
