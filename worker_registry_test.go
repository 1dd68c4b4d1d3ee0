package keyline_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
)

func stop(t *testing.T, w *keyline.Worker) {
	t.Helper()
	if _, err := w.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func TestRenamedConsumerKeepsItsPlace(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	w := startWorker(t, db, keyline.Config{}, recording(s, "old"))
	appendN(t, db, "thing:1", 2)
	s.wait(t, 2)
	settled(t, db)
	key := s.of("old", "thing:1")[0].IdempotencyKey
	stop(t, w)
	appendN(t, db, "thing:1", 1)
	startWorker(t, db, keyline.Config{}, recording(s, "new", func(c *keyline.Consumer) { c.PreviousNames, c.Revision = []string{"old"}, 2 }))
	s.wait(t, 3)
	if got := s.of("new", "thing:1"); len(got) != 1 || got[0].Seq != 3 {
		t.Fatalf("after the renaming: %+v", got)
	}
	if got := s.of("new", "thing:1")[0]; got.IdempotencyKey[len(got.ID.String()):] != key[len(key)-2:] {
		t.Fatalf("idempotency key %s after %s", got.IdempotencyKey, key)
	}
}

func TestOlderRevisionIsNotHostedAndChangesNothing(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	newer := recording(s, "c", func(c *keyline.Consumer) { c.Revision = 2 })
	startWorker(t, db, keyline.Config{Name: "new"}, newer)
	wrong := newSeen()
	startWorker(t, db, keyline.Config{Name: "old", Beside: "new"}, recording(wrong, "c", func(c *keyline.Consumer) { c.Types = []string{"nothing"} }))
	appendN(t, db, "thing:1", 5)
	s.wait(t, 5)
	if wrong.count() != 0 {
		t.Fatal("the old revision runs")
	}
	if types := scalar[[]string](t, db.Pool(), "select types from keyline.consumers where name = 'c'"); types[0] != "*" {
		t.Fatalf("types %v", types)
	}
}

func TestChangedDefinitionNeedsANewRevision(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	w := startWorker(t, db, keyline.Config{}, recording(s, "c"))
	stop(t, w)
	changed, err := keyline.NewWorker(db.Pool(), keyline.Config{}, recording(s, "c", func(c *keyline.Consumer) { c.Types = []string{"x"} }))
	if err != nil {
		t.Fatal(err)
	}
	if err := changed.Start(t.Context()); !errors.Is(err, keyline.ErrConflict) {
		t.Fatalf("started: %v", err)
	}
}

func TestConsumerThatStartsAtTheBeginningCatchesUpInOrder(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	w := startWorker(t, db, keyline.Config{Name: "one"}, recording(s, "now"))
	appendN(t, db, "thing:1", 3)
	appendN(t, db, "thing:2", 3)
	s.wait(t, 6)
	late := newSeen()
	startWorker(t, db, keyline.Config{Name: "two", Beside: "one"}, recording(late, "late", func(c *keyline.Consumer) { c.Start = keyline.Beginning() }))
	appendN(t, db, "thing:1", 2)
	late.wait(t, 8)
	settled(t, db)
	inOrder(t, late.of("late", "thing:1"), 5)
	inOrder(t, late.of("late", "thing:2"), 3)
	if m := late.of("late", "thing:2")[0].Mode; m != keyline.CatchUp {
		t.Fatalf("mode %s", m)
	}
	inOrder(t, s.of("now", "thing:1"), 5)
	_ = w
}

func TestVersionsThatAreNotSupportedFollowThePolicy(t *testing.T) {
	t.Parallel()
	for _, policy := range []keyline.Unsupported{keyline.SkipUnsupported, keyline.DeadLetterUnsupported, keyline.WaitUnsupported} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			db, s := testdb.New(t), newSeen()
			c := recording(s, "c", func(c *keyline.Consumer) { c.Versions, c.OnUnsupported = []int{1}, policy })
			w := startWorker(t, db, keyline.Config{}, c)
			client, err := keyline.NewClient(keyline.ClientConfig{})
			if err != nil {
				t.Fatal(err)
			}
			for _, version := range []int{1, 2, 1} {
				if _, err := client.Append(t.Context(), db.Pool(), keyline.NewEvent{Key: keyline.Key{Record: "thing:1"}, Type: "t", Version: version}); err != nil {
					t.Fatal(err)
				}
			}
			want := map[keyline.Unsupported]int{keyline.SkipUnsupported: 2, keyline.DeadLetterUnsupported: 2, keyline.WaitUnsupported: 1}[policy]
			s.wait(t, want)
			settled(t, db)
			if s.count() != want {
				t.Fatalf("%d deliveries", s.count())
			}
			skips := scalar[int](t, db.Pool(), "select count(*) from keyline.skips where code = 'unsupported_version'")
			dead := scalar[int](t, db.Pool(), "select count(*) from keyline.dead_letters where reason = 'unsupported_version'")
			parked := scalar[int](t, db.Pool(), "select count(*) from keyline.checkpoints where state = 'parked' and error_code = 'unsupported_version'")
			if got := [3]int{skips, dead, parked}; got != map[keyline.Unsupported][3]int{
				keyline.SkipUnsupported: {1, 0, 0}, keyline.DeadLetterUnsupported: {0, 1, 0}, keyline.WaitUnsupported: {0, 0, 1}}[policy] {
				t.Fatalf("skips, dead, parked: %v", got)
			}
			if policy != keyline.WaitUnsupported {
				return
			}
			stop(t, w)
			c.Versions, c.Revision = []int{1, 2}, 2
			startWorker(t, db, keyline.Config{}, c)
			s.wait(t, 3)
			inOrder(t, s.of("c", "thing:1"), 3)
		})
	}
}

func TestUndeclaredEffectDoesNotStart(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	_, err := keyline.NewWorker(db.Pool(), keyline.Config{}, recording(s, "c", func(c *keyline.Consumer) { c.Effect = keyline.Effect{} }))
	var field *keyline.Error
	if !errors.As(err, &field) || field.Field != "c.Effect" {
		t.Fatalf("error: %v", err)
	}
}

func TestExcludedConsumerDoesNotRunHere(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	startWorker(t, db, keyline.Config{}, recording(s, "runs"), recording(s, "excluded", func(c *keyline.Consumer) { c.Excluded = "not yet safe to repeat" }))
	appendN(t, db, "thing:1", 2)
	s.wait(t, 2)
	if got := s.of("excluded", "thing:1"); len(got) != 0 {
		t.Fatal("it runs")
	}
	if n := scalar[int](t, db.Pool(), "select head - (select seq from keyline.positions where consumer = 'excluded') from keyline.records"); n != 2 {
		t.Fatalf("it is %d behind, want 2", n)
	}
}

func TestEventThatConcernsNobodyEnds(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	startWorker(t, db, keyline.Config{}, recording(s, "c", func(c *keyline.Consumer) { c.Types = []string{"other.*"} }),
		keyline.Consumer{Name: "contract", Types: []string{"*"}, Effect: keyline.None(), ContractOnly: true})
	appendN(t, db, "thing:1", 2)
	settled(t, db)
	if states := scalar[[]string](t, db.Pool(), "select array_agg(distinct state) from keyline.event_status"); len(states) != 1 || states[0] != "completed" {
		t.Fatalf("states %v", states)
	}
}

func TestLockstepHoldsYoungerEventsUntilTheOlderIsTerminalForAll(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	startWorker(t, db, keyline.Config{Ordering: keyline.Lockstep},
		recording(s, "fast"),
		keyline.Consumer{Name: "slow", Types: []string{"*"}, Effect: keyline.None(), Retry: quick(20*time.Millisecond, 20*time.Millisecond),
			Handle: func(_ context.Context, d *keyline.Delivery) error {
				for _, f := range s.of("fast", "thing:1") {
					if f.Seq > d.Seq {
						t.Errorf("fast is at %d while slow is at %d", f.Seq, d.Seq)
					}
				}
				s.add(d)
				if d.Attempt < 3 {
					return errFails
				}
				return nil
			}})
	appendN(t, db, "thing:1", 3)
	s.wait(t, 3+9)
	settled(t, db)
	inOrder(t, s.of("fast", "thing:1"), 3)
}
