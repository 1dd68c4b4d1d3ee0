package store

import (
	"context"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// DeadLetterRow is a dead letter as operators see it. It never has the payload.
type DeadLetterRow struct {
	ID            int64      `json:"id"`
	Record        int64      `json:"-"`
	Tenant        string     `json:"tenant"`
	Key           string     `json:"record_key"`
	Seq           int64      `json:"seq"`
	ConsumerID    int32      `json:"-"`
	Consumer      string     `json:"consumer"`
	EventID       uuid.UUID  `json:"event_id"`
	Type          string     `json:"type"`
	Attempt       int        `json:"attempt"`
	Reason        string     `json:"reason"`
	Code          string     `json:"code"`
	Message       string     `json:"message"`
	FirstFailedAt time.Time  `json:"first_failed_at"`
	FailedAt      time.Time  `json:"failed_at"`
	Status        string     `json:"status"`
	DueAt         *time.Time `json:"due_at,omitempty"`
	ResolvedAt    *time.Time `json:"resolved_at,omitempty"`
	ResolvedBy    string     `json:"resolved_by,omitempty"`
	Resolution    string     `json:"resolution,omitempty"`
}

// DeadQuery says which dead letters an operator means; its zero fields filter nothing.
type DeadQuery struct {
	ID                   int64
	Consumer, Code, Type string
	Tenant, Record       *string
	// Since and Until bound the last failure: at or after, and before.
	Since, Until time.Time
	Statuses     []string
	// HideInternal leaves out those of event types that are internal.
	HideInternal bool
}

func (q DeadQuery) args() []any {
	return []any{unlessZero(q.ID), unlessEmpty(q.Consumer), unlessEmpty(q.Code), unlessEmpty(q.Type), q.Tenant, q.Record,
		optional(q.Since), optional(q.Until), q.HideInternal, q.Statuses}
}

// DeadLetters lists dead letters, the newest first, those with an id below
// below (0: from the newest). limit 0 means 100.
func (o *Operate) DeadLetters(ctx context.Context, q DeadQuery, below int64, limit int) ([]DeadLetterRow, error) {
	if below == 0 {
		below = math.MaxInt64
	}
	return o.deadLetters(ctx, q, 0, below, false, limit)
}

// OldestDeadLetters lists dead letters, the oldest first, those with an id
// above above and up to upto. limit 0 means 100.
func (o *Operate) OldestDeadLetters(ctx context.Context, q DeadQuery, above, upto int64, limit int) ([]DeadLetterRow, error) {
	return o.deadLetters(ctx, q, above, upto+1, true, limit)
}

func (o *Operate) deadLetters(ctx context.Context, q DeadQuery, above, below int64, oldest bool, limit int) ([]DeadLetterRow, error) {
	return o.s.deadLetters(ctx, o.s.hot, q, above, below, oldest, limit)
}

// deadLetters is planned anew for each page: only a plan that knows the direction and the filters ends where the page is full. Any
// other reads, joins and sorts all that there are, for every page of a bulk act.
func (s *Store) deadLetters(ctx context.Context, on queryer, q DeadQuery, above, below int64, oldest bool, limit int) ([]DeadLetterRow, error) {
	if limit == 0 {
		limit = defaultPage
	}
	rows, err := on.Query(ctx, s.q("operate_dead_letters"), append(append([]any{planAnew}, q.args()...), above, below, oldest, limit)...)
	if err != nil {
		return nil, translate("list dead letters", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[DeadLetterRow])
	return list, translate("list dead letters", err)
}

// CountDeadLetters counts dead letters with an id up to upto, 0: all, and says the highest id among them.
func (o *Operate) CountDeadLetters(ctx context.Context, q DeadQuery, upto int64) (n, highest int64, err error) {
	err = o.s.hot.QueryRow(ctx, o.s.q("operate_count_dead_letters"), append(append([]any{planAnew}, q.args()...), upto)...).Scan(&n, &highest)
	return n, highest, translate("count dead letters", err)
}
