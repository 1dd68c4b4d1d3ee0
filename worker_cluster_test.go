package keyline_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
)

func TestTwoWorkersShareTheRecordsAndNeverARecord(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	startWorker(t, db, keyline.Config{Name: "one"}, recording(s, "c"))
	startWorker(t, db, keyline.Config{Name: "two", Beside: "one"}, recording(s, "c"))
	const records, events = 40, 10
	for range events {
		for i := range records {
			appendN(t, db, fmt.Sprintf("thing:%d", i), 1)
		}
	}
	s.wait(t, records*events)
	settled(t, db)
	for i := range records {
		inOrder(t, s.of("c", fmt.Sprintf("thing:%d", i)), events)
	}
}

func TestSecondLoopInOneProcessIsRefused(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	startWorker(t, db, keyline.Config{Name: "one"}, recording(s, "c"))
	second, err := keyline.NewWorker(db.Pool(), keyline.Config{Name: "two"}, recording(s, "c"))
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Start(t.Context()); !errors.Is(err, keyline.ErrConflict) {
		t.Fatalf("a second loop starts: %v", err)
	}
}

func TestDisabledWorkerStartsNothing(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	w, err := keyline.NewWorker(db.Pool(), keyline.Config{Disabled: true}, recording(s, "c"))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := scalar[int](t, db.Pool(), "select count(*) from keyline.workers"); n != 0 {
		t.Fatalf("%d workers", n)
	}
	if _, err := w.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestWorkersWithDifferentConsumersDoNotMoveEachOthersCursor(t *testing.T) {
	t.Parallel()
	db, a, b := testdb.New(t), newSeen(), newSeen()
	one := startWorker(t, db, keyline.Config{Name: "one"}, recording(a, "a"))
	appendN(t, db, "thing:1", 3)
	a.wait(t, 3)
	startWorker(t, db, keyline.Config{Name: "two", Beside: "one"}, recording(b, "b"))
	appendN(t, db, "thing:1", 3)
	a.wait(t, 6)
	b.wait(t, 3)
	settled(t, db)
	inOrder(t, a.of("a", "thing:1"), 6)
	if got := b.of("b", "thing:1"); len(got) != 3 || got[0].Seq != 4 || got[2].Seq != 6 {
		t.Fatalf("a consumer that starts now: %+v", got)
	}
	// Nobody hosts a now: its events wait, b's go on.
	if _, err := one.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	appendN(t, db, "thing:1", 2)
	b.wait(t, 5)
	if n := scalar[int](t, db.Pool(), "select head - (select seq from keyline.positions where consumer = 'a') from keyline.records"); n != 2 {
		t.Fatalf("a is %d behind, want 2", n)
	}
	startWorker(t, db, keyline.Config{Name: "three", Beside: "two"}, recording(a, "a"))
	a.wait(t, 8)
	inOrder(t, a.of("a", "thing:1"), 8)
}

func TestStopLetsHandlersEndAndHandsBackTheRest(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	begun, release := make(chan struct{}), make(chan struct{})
	w := startWorker(t, db, keyline.Config{}, keyline.Consumer{Name: "c", Types: []string{"*"}, Effect: keyline.None(),
		Handle: func(_ context.Context, d *keyline.Delivery) error {
			if d.Seq == 1 {
				close(begun)
				<-release
			}
			s.add(d)
			return nil
		}})
	appendN(t, db, "thing:1", 3)
	<-begun
	stopped := make(chan keyline.Status, 2)
	for range 2 { // a second stop joins the first
		go func() {
			status, err := w.Stop(context.Background())
			if err != nil {
				t.Error(err)
			}
			stopped <- status
		}()
	}
	// Claims stop: an event that comes now is nobody's.
	testdb.Eventually(t, func() bool {
		select {
		case <-stopped:
			t.Error("stopped while a handler runs")
			return true
		default:
		}
		return scalar[int](t, db.Pool(), "select count(*) from keyline.mailboxes where claimed_by is not null") == 1
	}, "the record stays claimed while its handler runs")
	close(release)
	status := <-stopped
	if again := <-stopped; again.Completed != status.Completed || status.Completed != 1 || len(status.StillRunning) != 0 {
		t.Fatalf("status %+v, then %+v", status, again)
	}
	inOrder(t, s.of("c", "thing:1"), 1)
	if n := scalar[int](t, db.Pool(), "select count(*) from keyline.mailboxes where claimed_by is null and due_at <= clock_timestamp() and crashes = 0"); n != 1 {
		t.Fatal("the rest is not handed back")
	}
	if n := scalar[int](t, db.Pool(), "select coalesce(sum(attempt), 0) from keyline.checkpoints"); n != 0 {
		t.Fatalf("%d attempts are charged", n)
	}
	startWorker(t, db, keyline.Config{}, recording(s, "c"))
	s.wait(t, 3)
	settled(t, db)
	inOrder(t, s.of("c", "thing:1"), 3)
}

func TestHandlerThatOutlivesTheGraceIsCancelledWithoutCharge(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	begun := make(chan struct{})
	w := startWorker(t, db, keyline.Config{}, keyline.Consumer{Name: "c", Types: []string{"*"}, Effect: keyline.None(),
		Handle: func(ctx context.Context, _ *keyline.Delivery) error {
			close(begun)
			<-ctx.Done()
			return ctx.Err()
		}})
	appendN(t, db, "thing:1", 1)
	<-begun
	grace, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if _, err := w.Stop(grace); err != nil {
		t.Fatal(err)
	}
	if n := scalar[int](t, db.Pool(), "select count(*) from keyline.failures"); n != 0 {
		t.Fatal("a cancelled run is a failure")
	}
	s := newSeen()
	startWorker(t, db, keyline.Config{}, recording(s, "c"))
	s.wait(t, 1)
	if d := s.of("c", "thing:1")[0]; d.Attempt != 1 {
		t.Fatalf("attempt %d", d.Attempt)
	}
}
