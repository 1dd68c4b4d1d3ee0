package keyline_test

import (
	"context"
	"testing"
	"time"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/testdb"
)

// soon is the baseline's bound of a delivery under normal load: a thousand times what it takes.
const soon = 10 * time.Second

// Promise: an event is delivered once its transaction has committed, whatever committed after it began, and not before.
func TestAnEventIsDeliveredAtItsCommitAndNotBefore(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	startWorker(t, db, keyline.Config{}, recording(s, "c"))
	client, now := newClient(t, keyline.ClientConfig{}), clock.Real()
	tx := must(db.Connect().Begin(t.Context()))(t)
	must(client.Append(t.Context(), tx, keyline.NewEvent{Key: keyline.Key{Record: "open"}, Type: "t"}))(t)
	appendN(t, db, "other", 3)
	s.wait(t, 3)
	settled(t, db) // the worker has found all that there was to find
	if got := s.of("c", "open"); len(got) > 0 {
		t.Fatalf("delivered before its commit: %+v", got)
	}
	committed := now.Mono()
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.wait(t, 4)
	if took := now.Mono() - committed; len(s.of("c", "open")) != 1 || took > soon {
		t.Errorf("delivered %d times, %s after its commit", len(s.of("c", "open")), took)
	}
}

// Promise: an event whose wake is lost is found by the poll.
func TestAnEventWhoseWakeIsLostIsFoundByThePoll(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	startWorker(t, db, keyline.Config{}, recording(s, "c"))
	client, now := newClient(t, keyline.ClientConfig{}), clock.Real()
	for i, record := range []string{"first", "second"} { // the second when the worker sleeps again
		tx := must(db.Connect().Begin(t.Context()))(t)
		exec(t, tx, "set local keyline.wake = off")
		must(client.Append(t.Context(), tx, keyline.NewEvent{Key: keyline.Key{Record: record}, Type: "t"}))(t)
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		committed := now.Mono()
		s.wait(t, i+1)
		if took := now.Mono() - committed; took > soon {
			t.Errorf("%s: found after %s", record, took)
		}
		settled(t, db)
	}
}

// Promise: a retry begins when it is due, and at most about a poll later.
func TestARetryBeginsWithinAPollOfItsTime(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	late := make(chan time.Duration, 1)
	startWorker(t, db, keyline.Config{}, keyline.Consumer{Name: "c", Types: []string{"*"}, Effect: keyline.None(), Retry: quick(time.Second),
		Handle: func(ctx context.Context, d *keyline.Delivery) error {
			if d.Attempt == 1 {
				return errFails
			}
			began := clock.Real().Now()
			var due time.Time
			if err := db.Pool().QueryRow(ctx, "select next_attempt_at from keyline.checkpoints").Scan(&due); err != nil {
				return err
			}
			late <- began.Sub(due)
			return nil
		}})
	appendN(t, db, "thing:1", 1)
	select {
	case late := <-late:
		if late < 0 || late > soon {
			t.Errorf("it began %s after it was due", late)
		}
	case <-time.After(time.Minute):
		t.Fatal("it never ran again")
	}
}

// Promise: by default a poll comes every 1 to 5 s, a heartbeat at least every 30 s, and what a lost worker held is free again
// within its lease and one look.
func TestDefaultsKeepTheServiceLevels(t *testing.T) {
	t.Parallel()
	if keyline.DefaultPollInterval < time.Second || keyline.DefaultPollInterval > 5*time.Second {
		t.Errorf("polls every %s", keyline.DefaultPollInterval)
	}
	db := testdb.New(t)
	startWorker(t, db, keyline.Config{}, recording(newSeen(), "c"))
	// Each renews its own lease, and looks at the others', three times in a lease.
	if lease := scalar[time.Duration](t, db.Pool(), "select lease from keyline.workers"); lease != keyline.DefaultLease || lease/3 > 30*time.Second {
		t.Errorf("a lease of %s", lease)
	}
}
