package keyline_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
)

func TestAppendManyOverTheSameRecordsDoesNotDeadlock(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	client := newClient(t, keyline.ClientConfig{})
	pool := wide(db, 6)
	// Usable keys, and events that become their own records by id or idempotency key.
	var events []keyline.NewEvent
	for i := range 10 {
		events = append(events,
			keyline.NewEvent{Key: keyline.Key{Tenant: fmt.Sprint(i % 3), Record: fmt.Sprint("r", i)}, Type: "t"},
			keyline.NewEvent{Type: "t", IdempotencyKey: fmt.Sprint("k", i)},
			keyline.NewEvent{Key: keyline.Key{Tenant: "1"}, Type: "t", IdempotencyKey: fmt.Sprint("k", i)})
	}
	reversed := slices.Clone(events)
	slices.Reverse(reversed)
	for range 15 {
		if err := errors.Join(all(6, func(i int) error {
			batch := events
			if i%2 == 1 {
				batch = reversed
			}
			_, err := client.AppendMany(t.Context(), pool, batch)
			return err
		})...); err != nil {
			t.Fatal(err)
		}
	}
	if n := scalar[int64](t, db.Pool(), `select count(*) from keyline.events`); n != 15*6*10+20 {
		t.Errorf("%d events, want %d", n, 15*6*10+20)
	}
}

func TestAppendManyLocksInOneOrderAndAnswersInTheOther(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	client := newClient(t, keyline.ClientConfig{})
	var events []keyline.NewEvent
	for i, key := range []string{"c", "a", "b", "a", "", "c", "a"} {
		events = append(events, keyline.NewEvent{Key: keyline.Key{Record: key}, Type: fmt.Sprint("t", i), Payload: i})
	}
	results := must(client.AppendMany(t.Context(), db.Pool(), events))(t)
	var seqs []int64
	for i, a := range results {
		seqs = append(seqs, a.Seq)
		stored := must(client.Events(t.Context(), db.Pool(), a.Key, a.Seq, 1))(t)
		if len(stored) != 1 || stored[0].ID != a.ID || stored[0].Type != events[i].Type {
			t.Errorf("result %d is %+v, which is %+v", i, a, stored)
		}
	}
	if want := []int64{1, 1, 1, 2, 1, 2, 3}; !slices.Equal(seqs, want) {
		t.Errorf("seqs %v, want %v", seqs, want)
	}
	// Surrogate ids show the order in which the records were locked.
	order := must(pgx.CollectRows(must(db.Pool().Query(t.Context(),
		`select record_key from keyline.records where record_key in ('a', 'b', 'c') order by id`))(t), pgx.RowTo[string]))(t)
	if !slices.Equal(order, []string{"a", "b", "c"}) {
		t.Errorf("records were locked in the order %v", order)
	}
}

func TestTenThousandEventsInOneCall(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	client := newClient(t, keyline.ClientConfig{})
	events := make([]keyline.NewEvent, 10_000)
	for i := range events {
		events[i] = keyline.NewEvent{Key: keyline.Key{Record: fmt.Sprint("r", i%1000)}, Type: "t", Payload: i, OccurredAt: time.Unix(int64(i), 0)}
	}
	results := must(client.AppendMany(t.Context(), db.Pool(), events))(t)
	for i, a := range results {
		if a.Seq != int64(i/1000+1) {
			t.Fatalf("event %d has seq %d", i, a.Seq)
		}
	}
}
