package keylinetest_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/keylinetest"
)

// timeline is the code under test: a consumer of an application.
func timeline() keyline.Consumer {
	return keyline.Consumer{
		Name: "timeline", Types: []string{"activity.*"}, Effect: keyline.Database(),
		HandleTx: func(ctx context.Context, tx pgx.Tx, d *keyline.Delivery) error {
			_, err := tx.Exec(ctx, "insert into timeline (activity, seq, what) values ($1, $2, $3)", d.Key.Record, d.Seq, d.Type)
			return err
		},
	}
}

// A test of a consumer: its table, a worker, an event, a run, and what must have come of it.
func TestATimelineIsKept(t *testing.T) {
	t.Parallel()
	db := keylinetest.New(t)
	if _, err := db.Pool.Exec(t.Context(), "create table timeline (activity text, seq bigint, what text)"); err != nil {
		t.Fatal(err)
	}
	worker := db.Worker(timeline())
	events := db.Append(
		keyline.NewEvent{Key: keyline.Key{Record: "activity:42"}, Type: "activity.created"},
		keyline.NewEvent{Key: keyline.Key{Record: "activity:42"}, Type: "activity.completed"},
	)
	worker.Run()
	worker.AssertDelivered("timeline", events...)
	db.AssertNoDeadLetters()
	var last string
	if err := db.Pool.QueryRow(t.Context(), "select what from timeline order by seq desc limit 1").Scan(&last); err != nil || last != "activity.completed" {
		t.Errorf("the timeline ends with %q, %v", last, err)
	}
}
