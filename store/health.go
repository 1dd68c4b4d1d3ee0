package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// How the leader counts what waits of each consumer.
const (
	// HealthEvery is how often each worker offers to count. The one that leads does; another takes over
	// where it has not done so for healthLease.
	HealthEvery = 10 * time.Second
	healthLease = 3 * HealthEvery
	// healthMost is how many records, and rows of a consumer, one count looks at.
	healthMost = 5_000
)

// KeepHealth counts what waits of each consumer, if this store's worker leads
// or nobody does. It returns the leader's term, 0 where another worker leads.
func (s *Store) KeepHealth(ctx context.Context) (term int64, err error) {
	err = autocommit(ctx, s.hot, s.q("keep_health"), []any{s.workerID(), healthLease.Seconds(), healthMost}, one(&term))
	return term, translate("keep health", err)
}

// ConsumerHealth is how a consumer fares, payload-free.
type ConsumerHealth struct {
	Name   string `json:"name"`
	Status string `json:"status"`
	// Workers are the live ones that run it; the last of them was heard of at LastSeenAt. Processing
	// are its deliveries that run now, as of their last renewals.
	Workers    int64      `json:"workers"`
	LastSeenAt *time.Time `json:"last_seen_at"`
	Processing int64      `json:"processing"`
	// Deliveries since it was registered.
	Completed int64 `json:"completed"`
	Failed    int64 `json:"failed"`
	Skipped   int64 `json:"skipped"`
	Died      int64 `json:"died"`
	Retried   int64 `json:"retried"`
	// LastEventAt, LastSuccessAt and LastFailureAt are of its deliveries; null: there was none.
	LastEventAt   *time.Time `json:"last_event_at"`
	LastSuccessAt *time.Time `json:"last_success_at"`
	LastFailureAt *time.Time `json:"last_failure_at"`
	// Pending are the events beyond its place, whether they concern it or not; at least so many where
	// PendingExact is false. Retrying of them wait for their next attempt, beside dead letters that do.
	Pending      int64 `json:"pending"`
	PendingExact bool  `json:"pending_exact"`
	Retrying     int64 `json:"retrying"`
	// Parked are the records that it is parked on, Unsupported those of them where its code does not know the event's
	// version, Dead its open dead letters. Each stops at 5,000.
	Parked      int64 `json:"parked"`
	Unsupported int64 `json:"unsupported"`
	Dead        int64 `json:"dead"`
	// OldestAt is when the oldest pending event that was seen was appended: its lag is the time since. Null: none is pending.
	OldestAt *time.Time `json:"oldest_at"`
	// CountedAt is when the leader last counted what waits, in which Term; null: never.
	CountedAt *time.Time `json:"counted_at"`
	Term      int64      `json:"term"`
}

// Health reads how every registered consumer fares. It is cheap at any size.
func (o *Operate) Health(ctx context.Context) ([]ConsumerHealth, error) {
	rows, err := o.s.lease.Query(ctx, o.s.q("operate_health"))
	if err != nil {
		return nil, translate("read health", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[ConsumerHealth])
	return list, translate("read health", err)
}
