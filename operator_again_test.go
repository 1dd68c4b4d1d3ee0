package keyline_test

import (
	"context"
	"strings"
	"testing"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
)

// Promise: a skip that names its event and is said again, since its answer was lost or somebody else was faster, gives up no other event.
func TestASkipThatIsSaidAgainGivesUpNoOtherEvent(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSwitched()
	startWorker(t, db, keyline.Config{}, s.consumer("c", backoff))
	appendN(t, db, "thing:1", 2)
	awaitReason(t, db, "c", keyline.ReasonBackoff)
	o, key := newOperator(t, db, keyline.RoleOperator), keyline.Key{Record: "thing:1"}
	must(o.SkipHead(t.Context(), key, "c", 1, "of no use"))(t)
	s.wait(t, 2) // the second event fails too
	awaitReason(t, db, "c", keyline.ReasonBackoff)
	_, err := o.SkipHead(t.Context(), key, "c", 1, "of no use")
	if e := wantError(t, err, keyline.ErrConflict, keyline.CodeNothingToDo); !strings.Contains(e.Message, "at event 2 of thing:1, not at 1") {
		t.Errorf("it says %q", e.Message)
	}
	if n := scalar[int](t, db.Pool(), "select count(*) from keyline.skips"); n != 1 {
		t.Errorf("%d events were given up", n)
	}
	must(o.SkipHead(t.Context(), key, "c", 2, "of no use either"))(t)
	settled(t, db)
}

// Promise: who drains a worker whose process has meanwhile fenced itself, and goes on as another worker, drains that one.
func TestADrainFollowsAProcessToItsNextIncarnation(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	exec(t, db.Pool(), `insert into keyline.workers (name, instance, host, pid, lease, status, ended_at)
		select 'w', i.id, 'h', 1, interval '1 hour', s, case when s <> 'live' then clock_timestamp() end
		from (select gen_random_uuid() as id) i, unnest(array['lost', 'left', 'live']) with ordinality u(s, n) order by n`)
	o := newOperator(t, db, keyline.RoleOperator)
	ctx, cancel := context.WithTimeout(t.Context(), toBeGiven)
	defer cancel()
	_, err := o.DrainWorker(ctx, 1, "new kernel")
	wantError(t, err, keyline.ErrUnavailable, keyline.CodeNotAppliedYet)
	if got := scalar[string](t, db.Pool(), "select string_agg(status, ' ') from keyline.workers where drain_at is not null"); got != "live" {
		t.Errorf("asked are: %s", got)
	}
	wantAudit(t, o, "drain_worker", "worker w#3", "new kernel")
	exec(t, db.Pool(), "update keyline.workers set status = 'left', ended_at = clock_timestamp() where id = 3")
	_, err = o.DrainWorker(t.Context(), 1, "again")
	wantError(t, err, keyline.ErrConflict, keyline.CodeNothingToDo)
}

// Promise: a bulk act that was confirmed by a count is about what was counted: what has died since is left alone.
func TestABulkActIsAboutWhatWasCounted(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSwitched()
	startWorker(t, db, keyline.Config{}, s.consumer("c", func(c *keyline.Consumer) { c.Breaker.Disabled = true }))
	appendN(t, db, "thing:1", 2)
	deadLetters(t, db, 2)
	o := newOperator(t, db, keyline.RoleOperator)
	counted := must(o.ResolveDeadLetters(t.Context(), keyline.DeadLetterFilter{}, "", keyline.BulkOptions{DryRun: true}))(t)
	appendN(t, db, "thing:2", 1)
	deadLetters(t, db, 3)
	r := must(o.ResolveDeadLetters(t.Context(), keyline.DeadLetterFilter{}, "as counted", keyline.BulkOptions{Upto: counted.Upto}))(t)
	if counted.Matched != 2 || r.Matched != 2 || r.Applied != 2 {
		t.Errorf("counted %+v, then %+v", counted, r)
	}
	deadLetters(t, db, 1)
	_, err := o.ResolveDeadLetters(t.Context(), keyline.DeadLetterFilter{}, "again", keyline.BulkOptions{Upto: counted.Upto})
	wantError(t, err, keyline.ErrConflict, keyline.CodeNothingToDo)
}

// Promise: who calls a consumer by the name of before a rename is told what it is called now.
func TestWhoCallsARenamedConsumerByItsFormerNameIsTold(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	registered(t, db, keyline.Config{}, recording(s, "before"))
	registered(t, db, keyline.Config{}, keyline.Consumer{Name: "now", PreviousNames: []string{"before"}, Revision: 2, Types: []string{"*"}, Effect: keyline.None(),
		Handle: func(context.Context, *keyline.Delivery) error { return nil }})
	o := newOperator(t, db, keyline.RoleOperator)
	_, inspect := o.InspectConsumer(t.Context(), "before")
	for what, err := range map[string]error{"pause": o.PauseConsumer(t.Context(), "before", ""), "inspect": inspect} {
		if e := wantError(t, err, keyline.ErrNotFound, keyline.CodeNotFound); !strings.Contains(e.Message, "called") || !strings.Contains(e.Message, "now") {
			t.Errorf("%s says %q", what, e.Message)
		}
	}
	// A second program that was renamed from it too would begin as a new one.
	w := must(keyline.NewWorker(db.NewPool(nil), keyline.Config{}, keyline.Consumer{Name: "other", PreviousNames: []string{"before"}, Revision: 2, Types: []string{"*"},
		Effect: keyline.None(), Handle: func(context.Context, *keyline.Delivery) error { return nil }}))(t)
	t.Cleanup(func() { _, _ = w.Stop(context.WithoutCancel(t.Context())) }) // should it have started
	if err := w.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "its previous name is one of now") {
		t.Errorf("it starts: %v", err)
	}
	if n := scalar[int](t, db.Pool(), "select count(*) from keyline.consumers"); n != 1 {
		t.Errorf("%d consumers", n)
	}
}

// Promise: a drain that is waited for is done, though retention takes the worker's row as soon as it has left.
func TestADrainBesideAPruneIsDone(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	exec(t, db.Pool(), `insert into keyline.workers (name, instance, host, pid, lease) values ('w', gen_random_uuid(), 'h', 1, interval '1 hour')`)
	o := newOperator(t, db, keyline.RoleOperator)
	drained := make(chan error, 1)
	go func() { _, err := o.DrainWorker(t.Context(), 1, ""); drained <- err }()
	testdb.Eventually(t, func() bool {
		return scalar[int](t, db.Pool(), "select count(*) from keyline.workers where drain_at is not null") == 1
	}, "it is asked")
	exec(t, db.Pool(), "delete from keyline.workers")
	if err := <-drained; err != nil {
		t.Errorf("it has left: %v", err)
	}
	_, err := o.DrainWorker(t.Context(), 1, "")
	wantError(t, err, keyline.ErrNotFound, keyline.CodeNotFound)
}
