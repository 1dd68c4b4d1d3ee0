package crm

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline"
)

// onCalendar keeps one entry per activity, as its latest event says. The entry
// remembers which event that is, so that an older one, handed over again,
// changes nothing.
func onCalendar(ctx context.Context, tx pgx.Tx, d *keyline.Delivery, s Snapshot) error {
	id, err := activityID(d)
	if err != nil {
		return err
	}
	closed := d.Type == "activity.deleted" || s.Status == Completed || s.Status == Cancelled
	var ends *time.Time
	if s.ScheduledAt != nil {
		at := s.ScheduledAt.Add(time.Duration(s.Minutes) * time.Minute)
		ends = &at
	}
	entry, created, err := keyline.FindOrCreate(ctx, tx, keyline.NaturalRow{
		Table: pgx.Identifier{"crm", "calendar"},
		Key:   map[string]any{"organization": d.Tenant, "activity_id": id},
		Values: map[string]any{
			"applied_seq": d.Seq, "owner": s.Owner, "subject": s.Subject, "starts_at": s.ScheduledAt, "ends_at": ends,
			"closed": closed, "updated_at": d.OccurredAt,
		},
		Returning: []string{"id"},
	}, pgx.RowTo[int64])
	if err != nil || created {
		return err
	}
	_, err = tx.Exec(ctx, updateCalendar, entry, d.Seq, s.Owner, s.Subject, s.ScheduledAt, ends, closed, d.OccurredAt)
	return err
}

const updateCalendar = `
update crm.calendar
set applied_seq = $2, owner = $3, subject = $4, starts_at = $5, ends_at = $6, closed = $7, updated_at = $8
where id = $1 and applied_seq < $2`
