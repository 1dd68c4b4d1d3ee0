package crm

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline"
)

// onTimeline keeps one line per event. HandleTx commits it together with the
// consumer's checkpoint, so that it happens once; FindOrCreate makes it harmless
// even where an event is handed to it twice all the same, by a rebuild say.
// What it writes comes from the event and not from the clock, so a rebuild writes the same.
func onTimeline(ctx context.Context, tx pgx.Tx, d *keyline.Delivery, s Snapshot) error {
	id, err := activityID(d)
	if err != nil {
		return err
	}
	_, _, err = keyline.FindOrCreate(ctx, tx, keyline.NaturalRow{
		Table:     pgx.Identifier{"crm", "timeline"},
		Key:       map[string]any{"organization": d.Tenant, "activity_id": id, "seq": d.Seq},
		Values:    map[string]any{"event_type": d.Type, "actor": s.UpdatedBy, "summary": summary(d.Type, s), "at": d.OccurredAt},
		Returning: []string{"id"},
	}, pgx.RowTo[int64])
	return err
}

// summary says what happened, for people.
func summary(eventType string, s Snapshot) string {
	what := strings.TrimPrefix(eventType, "activity.")
	switch {
	case what == "assigned" || what == "reassigned":
		return fmt.Sprintf("%s to %s", what, value(s.Owner))
	case what == "rescheduled" && s.ScheduledAt != nil:
		return fmt.Sprintf("%s to %s", what, s.ScheduledAt.Format("2006-01-02 15:04"))
	case s.Outcome != "" && (what == "completed" || what == "cancelled"):
		return fmt.Sprintf("%s: %s", what, s.Outcome)
	}
	return what
}

func value(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
