package keyline_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
)

var errFails = errors.New("it fails")

func TestRetryKeepsOrderAndNeverRepeatsASiblingsSuccess(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	startWorker(t, db, keyline.Config{},
		recording(s, "fine"),
		keyline.Consumer{Name: "stumbles", Types: []string{"*"}, Effect: keyline.None(), Retry: quick(time.Millisecond, time.Millisecond),
			Handle: func(_ context.Context, d *keyline.Delivery) error {
				s.add(d)
				if d.Seq == 2 && d.Attempt < 3 {
					return errFails
				}
				return nil
			}})
	appendN(t, db, "thing:1", 4)
	s.wait(t, 4+6)
	settled(t, db)
	inOrder(t, s.of("fine", "thing:1"), 4)
	var got []int64
	for _, d := range s.of("stumbles", "thing:1") {
		got = append(got, d.Seq)
		if d.Seq == 2 && d.Redelivered != (d.Attempt > 1) {
			t.Errorf("attempt %d says redelivered %v", d.Attempt, d.Redelivered)
		}
	}
	if want := []int64{1, 2, 2, 2, 3, 4}; !slices.Equal(got, want) {
		t.Fatalf("delivered %v, want %v", got, want)
	}
	if n := scalar[int](t, db.Pool(), "select count(*) from keyline.failures where error_code = 'error'"); n != 2 {
		t.Fatalf("%d failures are kept", n)
	}
}

func TestEveryFailureCountsUntilTheDeadLetter(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		onDead keyline.OnDead
		err    error
		runs   int
		reason string
		after  []int64 // what is delivered in the end
	}{
		{"exhausted", keyline.Advance, errFails, 3, "exhausted", []int64{1, 1, 1, 2}},
		{"permanent", keyline.Advance, keyline.Permanent(errFails), 1, "permanent", []int64{1, 2}},
		{"parked", keyline.Park, errFails, 3, "exhausted", []int64{1, 1, 1}},
		{"snoozed", keyline.Advance, nil, 0, "", []int64{1, 1, 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			db, s := testdb.New(t), newSeen()
			startWorker(t, db, keyline.Config{}, keyline.Consumer{Name: "fails", Types: []string{"*"}, Effect: keyline.None(), OnDead: c.onDead,
				Retry: quick(time.Millisecond, time.Millisecond),
				Handle: func(_ context.Context, d *keyline.Delivery) error {
					s.add(d)
					switch {
					case d.Seq != 1:
						return nil
					case c.name == "snoozed" && len(s.of("fails", "thing:1")) == 1:
						return keyline.Snooze(time.Millisecond)
					}
					return c.err
				}})
			appendN(t, db, "thing:1", 2)
			s.wait(t, len(c.after))
			settled(t, db)
			var got []int64
			for _, d := range s.of("fails", "thing:1") {
				got = append(got, d.Seq)
			}
			if !slices.Equal(got, c.after) {
				t.Fatalf("delivered %v, want %v", got, c.after)
			}
			if c.reason == "" {
				if n := scalar[int](t, db.Pool(), "select count(*) from keyline.dead_letters"); n != 0 || s.of("fails", "thing:1")[1].Attempt != 1 {
					t.Fatal("a snooze is charged")
				}
				return
			}
			var reason string
			var attempt int
			if err := db.Pool().QueryRow(t.Context(), "select reason, attempt from keyline.dead_letters where seq = 1 and status = 'open'").Scan(&reason, &attempt); err != nil {
				t.Fatal(err)
			}
			if reason != c.reason || attempt != c.runs {
				t.Fatalf("dead letter: %s after %d, want %s after %d", reason, attempt, c.reason, c.runs)
			}
		})
	}
}

func TestPanicIsAnAttemptWithItsStack(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	startWorker(t, db, keyline.Config{}, recording(s, "fine"), keyline.Consumer{Name: "panics", Types: []string{"*"}, Effect: keyline.None(),
		Retry: quick(time.Millisecond),
		Handle: func(_ context.Context, d *keyline.Delivery) error {
			s.add(d)
			if d.Seq == 1 && d.Attempt == 1 {
				panic("oh no")
			}
			return nil
		}})
	appendN(t, db, "thing:1", 2)
	s.wait(t, 2+3)
	settled(t, db)
	var code, message, stack string
	if err := db.Pool().QueryRow(t.Context(), "select error_code, error_message, stack from keyline.failures").Scan(&code, &message, &stack); err != nil {
		t.Fatal(err)
	}
	if code != "panic" || !strings.Contains(message, "oh no") || !strings.Contains(stack, "TestPanicIsAnAttempt") {
		t.Fatalf("%s: %s\n%s", code, message, stack)
	}
}

func TestJustFailedDeliveryIsNotPickedUpBeforeItIsDue(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	startWorker(t, db, keyline.Config{}, keyline.Consumer{Name: "fails", Types: []string{"*"}, Effect: keyline.None(),
		Handle: func(_ context.Context, d *keyline.Delivery) error {
			s.add(d)
			if d.Key.Record == "bad" {
				return errFails
			}
			return nil
		}})
	appendN(t, db, "bad", 2)
	s.wait(t, 1)
	// Everything else goes on around it; each of these is a chance to pick it up.
	for i := range 20 {
		appendN(t, db, "good", 1)
		s.wait(t, 2+i)
	}
	if got := s.of("fails", "bad"); len(got) != 1 {
		t.Fatalf("%d runs within its backoff", len(got))
	}
	testdb.Eventually(t, func() bool {
		return scalar[int](t, db.Pool(), "select count(*) from keyline.mailboxes where claimed_by is null and due_at > clock_timestamp() + interval '50 seconds'") == 1
	}, "the record is handed back until its head is due")
	if n := scalar[int](t, db.Pool(), "select attempt from keyline.checkpoints where state = 'backoff'"); n != 1 {
		t.Fatalf("attempt %d", n)
	}
}

func TestHandleTxRollsBackToItsSavepointAndBooksTheFailure(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		fail func(ctx context.Context, tx pgx.Tx) error
	}{
		{"error after writing", func(context.Context, pgx.Tx) error { return errFails }},
		{"sql error", func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "select 1/0")
			return err
		}},
		{"swallowed sql error", func(ctx context.Context, tx pgx.Tx) error {
			_, _ = tx.Exec(ctx, "select 1/0")
			return nil
		}},
		{"lock timeout", func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "set local lock_timeout = '10ms'; select pg_advisory_xact_lock(42)")
			return err
		}},
		{"connection lost", func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "select pg_terminate_backend(pg_backend_pid())")
			return err
		}},
		{"panic", func(context.Context, pgx.Tx) error { panic("oh no") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			db, s := testdb.New(t), newSeen()
			if _, err := db.Pool().Exec(t.Context(), "create table effects (seq bigint primary key)"); err != nil {
				t.Fatal(err)
			}
			holder := db.Connect()
			if _, err := holder.Exec(t.Context(), "select pg_advisory_lock(42)"); err != nil {
				t.Fatal(err)
			}
			startWorker(t, db, keyline.Config{}, keyline.Consumer{Name: "tx", Types: []string{"*"}, Effect: keyline.Database(), Retry: quick(time.Millisecond),
				HandleTx: func(ctx context.Context, tx pgx.Tx, d *keyline.Delivery) error {
					s.add(d)
					if _, err := tx.Exec(ctx, "insert into effects values ($1)", d.Seq); err != nil {
						return err
					}
					if d.Seq == 1 && d.Attempt == 1 {
						return c.fail(ctx, tx)
					}
					return nil
				}})
			appendN(t, db, "thing:1", 2)
			s.wait(t, 3)
			settled(t, db)
			if n := scalar[int](t, db.Pool(), "select count(*) from effects"); n != 2 {
				t.Fatalf("%d effects", n)
			}
			if n := scalar[int](t, db.Pool(), "select count(*) from keyline.failures where attempt = 1 and seq = 1"); n != 1 {
				t.Fatalf("%d failures booked", n)
			}
			if got := s.of("tx", "thing:1"); got[1].Seq != 1 || got[1].Attempt != 2 {
				t.Fatalf("second run: %+v", got[1])
			}
		})
	}
}
