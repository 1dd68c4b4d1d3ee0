package crm

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// What the consumers have made of the events. It is as late as they are.

// TimelineEntry is a line of an activity's timeline.
type TimelineEntry struct {
	Seq       int64     `json:"seq"`
	EventType string    `json:"event_type"`
	Actor     string    `json:"actor"`
	Summary   string    `json:"summary"`
	At        time.Time `json:"at"`
}

// Timeline returns what has happened to an activity, the oldest first.
func (s *Service) Timeline(ctx context.Context, organization string, id uuid.UUID) ([]TimelineEntry, error) {
	return collect[TimelineEntry](ctx, s.db, `
select seq, event_type, actor, summary, at from crm.timeline where organization = $1 and activity_id = $2 order by seq`, organization, id)
}

// CalendarEntry is an activity on somebody's calendar.
type CalendarEntry struct {
	ActivityID uuid.UUID `json:"activity_id"`
	Owner      *string   `json:"owner"`
	Subject    string    `json:"subject"`
	StartsAt   time.Time `json:"starts_at"`
	EndsAt     time.Time `json:"ends_at"`
}

// Calendar returns what an organization has between two times.
func (s *Service) Calendar(ctx context.Context, organization string, from, to time.Time) ([]CalendarEntry, error) {
	return collect[CalendarEntry](ctx, s.db, `
select activity_id, owner, subject, starts_at, ends_at from crm.calendar
where organization = $1 and not closed and starts_at >= $2 and starts_at < $3 order by starts_at, activity_id`, organization, from, to)
}

// DashboardCount is how often something happened on a day.
type DashboardCount struct {
	Day       time.Time `json:"day"`
	EventType string    `json:"event_type"`
	Events    int64     `json:"events"`
}

// Dashboard returns an organization's counts, the latest day first.
func (s *Service) Dashboard(ctx context.Context, organization string) ([]DashboardCount, error) {
	return collect[DashboardCount](ctx, s.db, `
select day, event_type, events from crm.dashboard
where organization = $1 and event_type <> $2 order by day desc, event_type`, organization, TypeNoteInternal)
}

func collect[T any](ctx context.Context, db DB, text string, args ...any) ([]T, error) {
	rows, err := db.Query(ctx, text, args...)
	if err != nil {
		return nil, classify(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[T])
	if err != nil {
		return nil, classify(err)
	}
	return list, nil
}
