package keyline_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
)

// exampleTB lets an example, which has no testing.TB, have a database.
type exampleTB struct {
	testing.TB
	cleanups []func()
}

func (*exampleTB) Helper()                        {}
func (*exampleTB) Context() context.Context       { return context.Background() }
func (*exampleTB) Failed() bool                   { return false }
func (*exampleTB) Logf(format string, a ...any)   { fmt.Fprintf(os.Stderr, format+"\n", a...) }
func (*exampleTB) Errorf(format string, a ...any) { panic(fmt.Sprintf(format, a...)) }
func (*exampleTB) Fatalf(format string, a ...any) { panic(fmt.Sprintf(format, a...)) }
func (tb *exampleTB) Cleanup(f func())            { tb.cleanups = append(tb.cleanups, f) }

// database is a database with Keyline's schema; done drops it.
func database() (db *testdb.DB, done func()) {
	tb := &exampleTB{}
	return testdb.New(tb), func() {
		for i := len(tb.cleanups) - 1; i >= 0; i-- {
			tb.cleanups[i]()
		}
	}
}

// check keeps the examples short; a program returns its errors.
func check(err error) {
	if err != nil {
		panic(err)
	}
}

func ExampleClient_Append() {
	ctx := context.Background()
	db, done := database()
	defer done()
	pool := db.Pool()
	_, err := pool.Exec(ctx, `create table activities (id bigint primary key, done boolean not null)`)
	check(err)
	client, err := keyline.NewClient(keyline.ClientConfig{})
	check(err)

	// The change and the event that reports it commit together.
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `insert into activities values (42, true)`); err != nil {
			return err
		}
		_, err := client.Append(ctx, tx, keyline.NewEvent{
			Key:            keyline.Key{Tenant: "acme", Record: "activity:42"},
			Type:           "activity.completed",
			Payload:        map[string]string{"by": "u1"},
			IdempotencyKey: "request-77",
		})
		return err
	})
	check(err)

	events, err := client.Events(ctx, pool, keyline.Key{Tenant: "acme", Record: "activity:42"}, 1, 0)
	check(err)
	for _, e := range events {
		fmt.Println(e.Seq, e.Type, string(e.Payload))
	}
	// Output: 1 activity.completed {"by": "u1"}
}

func ExampleClient_Append_expectedSeq() {
	ctx := context.Background()
	db, done := database()
	defer done()
	client, err := keyline.NewClient(keyline.ClientConfig{})
	check(err)

	seen := int64(0) // the record is new to us
	event := keyline.NewEvent{Key: keyline.Key{Record: "activity:42"}, Type: "activity.created", ExpectedSeq: &seen}
	first, err := client.Append(ctx, db.Pool(), event)
	check(err)
	fmt.Println("seq", first.Seq)

	_, err = client.Append(ctx, db.Pool(), event)
	fmt.Println("conflict:", errors.Is(err, keyline.ErrConflict), keyline.ErrorCode(err))
	// Output:
	// seq 1
	// conflict: true wrong_expected_seq
}

func ExampleClient_AppendMany() {
	ctx := context.Background()
	db, done := database()
	defer done()
	client, err := keyline.NewClient(keyline.ClientConfig{})
	check(err)

	// One round trip; the results are in the order of the events.
	results, err := client.AppendMany(ctx, db.Pool(), []keyline.NewEvent{
		{Key: keyline.Key{Record: "deal:7"}, Type: "deal.won"},
		{Key: keyline.Key{Record: "activity:42"}, Type: "activity.created"},
		{Key: keyline.Key{Record: "deal:7"}, Type: "deal.closed"},
	})
	check(err)
	for _, a := range results {
		fmt.Println(a.Key.Record, a.Seq)
	}
	// Output:
	// deal:7 1
	// activity:42 1
	// deal:7 2
}

func ExampleClient_AppendSQL() {
	ctx := context.Background()
	db, done := database()
	defer done()
	handle, err := sql.Open("postgres", db.URL) // lib/pq; every driver does
	check(err)
	defer handle.Close()
	client, err := keyline.NewClient(keyline.ClientConfig{})
	check(err)

	tx, err := handle.BeginTx(ctx, nil)
	check(err)
	defer tx.Rollback() // after the commit it does nothing
	appended, err := client.AppendSQL(ctx, tx, keyline.NewEvent{Key: keyline.Key{Record: "activity:42"}, Type: "activity.created"})
	check(err)
	check(tx.Commit())
	fmt.Println(appended.Key.Record, appended.Seq)
	// Output: activity:42 1
}

func ExampleClient_RegisterEventTypes() {
	ctx := context.Background()
	db, done := database()
	defer done()
	client, err := keyline.NewClient(keyline.ClientConfig{
		Strict: true,
		EventTypes: []keyline.EventType{{
			Type:   "activity.completed",
			Schema: json.RawMessage(`{"type": "object", "required": ["by"]}`),
		}},
	})
	check(err)
	check(client.RegisterEventTypes(ctx, db.Pool()))

	_, err = client.Append(ctx, db.Pool(), keyline.NewEvent{Type: "activity.completed", Payload: map[string]string{"who": "u1"}})
	fmt.Println(err)
	_, err = client.Append(ctx, db.Pool(), keyline.NewEvent{Type: "activity.compelted"})
	fmt.Println(err)
	// Output:
	// keyline: append: Payload: does not fit the schema of activity.completed version 1: "required" at /
	// keyline: append: Type: activity.compelted version 1 is not registered
}

type completed struct {
	By string `json:"by"`
}

func ExampleTyped() {
	consumer := keyline.Consumer{
		Name:   "notification",
		Types:  []string{"activity.*"},
		Effect: keyline.External("the mail provider drops a repeated idempotency key"),
		Handle: keyline.Typed(func(_ context.Context, d *keyline.Delivery, c completed) error {
			if c.By == "" {
				return keyline.Permanent(errors.New("nobody completed it")) // no retry mends that
			}
			fmt.Printf("mail about %s, done by %s\n", d.Record, c.By)
			return nil
		}),
	}
	d := &keyline.Delivery{Event: keyline.Event{Key: keyline.Key{Record: "activity:42"}, Payload: json.RawMessage(`{"by": "u1"}`)}}
	fmt.Println(consumer.Handle(context.Background(), d))
	d.Payload = json.RawMessage(`{"by": 1}`)
	fmt.Println(consumer.Handle(context.Background(), d))
	// Output:
	// mail about activity:42, done by u1
	// <nil>
	// keyline: Payload: does not decode into keyline_test.completed: number at "by" where string belongs
}

func ExampleNewInProcess() {
	// A program that depends on a Publisher can be tested without a worker and
	// without a database.
	complete := func(ctx context.Context, events keyline.Publisher, id int) error {
		_, err := events.Append(ctx, nil, keyline.NewEvent{
			Key: keyline.Key{Record: fmt.Sprintf("activity:%d", id)}, Type: "activity.completed", Payload: completed{By: "u1"}})
		return err
	}
	publisher, err := keyline.NewInProcess(keyline.ClientConfig{}, []string{"activity.completed"}, keyline.Consumer{
		Name: "timeline", Types: []string{"activity.*"}, Effect: keyline.None(),
		Handle: func(_ context.Context, d *keyline.Delivery) error {
			fmt.Println("timeline:", d.Type, d.Record, string(d.Payload))
			return nil
		},
	})
	check(err)
	check(complete(context.Background(), publisher, 42))
	fmt.Println(len(publisher.Events(keyline.Key{Record: "activity:42"})), "event")
	// Output:
	// timeline: activity.completed activity:42 {"by":"u1"}
	// 1 event
}

func ExampleRetryAfter() {
	err := keyline.RetryAfter(errors.New("the provider asks for patience"), 90*time.Second)
	verdict, delay, _ := keyline.Judge(err)
	fmt.Println(verdict == keyline.VerdictRetryAfter, delay)
	// Output: true 1m30s
}
