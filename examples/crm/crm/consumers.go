package crm

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/keylinehq/keyline"
)

// Deps are what the consumers need from their process.
type Deps struct {
	// DB is where the dashboard writes; a *pgxpool.Pool.
	DB Execer
	// Provider sends the notifications. Required.
	Provider Provider
}

// Execer runs a statement, in a transaction of its own.
type Execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// Provider sends messages to people, somewhere outside. It must drop a message
// whose key it has seen: a delivery is repeated where the process died after it
// had sent and before that was written down, and nothing on our side can
// tell that apart from a message that was never sent.
type Provider interface {
	Send(ctx context.Context, m Message) error
}

// Message is one message to one person.
type Message struct {
	// Key is the same each time this message is sent.
	Key  string
	To   string
	Text string
}

// Consumers are what happens because of activities' events, each at its own
// pace and with its own failures:
//
//   - timeline and calendar write rows of this database, in the transaction that
//     also moves their checkpoint: they happen once.
//   - dashboard counts many events in one statement, and a constraint keeps it
//     from counting one twice.
//   - notification reaches outside. It hands on a key by which the provider drops repetitions.
//
// Give them to keyline.NewWorker, or to several workers.
func Consumers(deps Deps) []keyline.Consumer {
	return []keyline.Consumer{
		{
			Name: "timeline", Types: []string{"activity.*"}, Effect: keyline.Database(), Start: keyline.Beginning(),
			HandleTx: keyline.TypedTx(onTimeline),
		},
		{
			Name: "calendar", Effect: keyline.Database(), Start: keyline.Beginning(),
			Types: []string{
				"activity.created", "activity.updated", "activity.assigned", "activity.reassigned", "activity.rescheduled",
				"activity.completed", "activity.cancelled", "activity.deleted",
			},
			HandleTx: keyline.TypedTx(onCalendar),
		},
		{
			// Internal grants it the notes' type, which "activity.*" alone does not.
			Name: "dashboard", Types: []string{"activity.*"}, Internal: true, Effect: keyline.Database(), Start: keyline.Beginning(),
			HandleBatch: dashboard{deps.DB}.count,
		},
		{
			// It starts with what happens from now on: nobody wants last year's notifications.
			Name: "notification", Effect: keyline.External("the provider drops a message whose key it has seen"),
			Types: []string{
				"activity.created", "activity.assigned", "activity.reassigned", "activity.rescheduled", "activity.completed", "activity.cancelled",
			},
			Versions: []int{1, 2},
			Handle:   keyline.Typed(notification{deps.Provider}.notify),
		},
	}
}

// activityID is the activity whose stream an event is in.
func activityID(d *keyline.Delivery) (uuid.UUID, error) {
	text, found := strings.CutPrefix(d.Key.Record, recordPrefix)
	id, err := uuid.Parse(text)
	if !found || err != nil {
		return uuid.Nil, keyline.Permanent(fmt.Errorf("record %q is no activity", d.Key.Record))
	}
	return id, nil
}
