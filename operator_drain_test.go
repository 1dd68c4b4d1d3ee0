package keyline_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
)

// freed is how many records have work that nobody holds or has crashed over. What waited for a slot is due when it would have asked again,
// a moment later.
func freed(t *testing.T, db *testdb.DB) int {
	t.Helper()
	return scalar[int](t, db.Pool(), "select count(*) from keyline.mailboxes where claimed_by is null and crashes = 0 and due_at <= clock_timestamp() + interval '1 second'")
}

func TestADrainedWorkerEndsWhatRunsHandsBackTheRestAndLeaves(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	begun, release := make(chan struct{}), make(chan struct{})
	w := startWorker(t, db, keyline.Config{Name: "one", Lease: shortLease}, keyline.Consumer{Name: "c", Types: []string{"*"}, Effect: keyline.None(), MaxInFlight: 1,
		Handle: func(_ context.Context, d *keyline.Delivery) error {
			s.add(d)
			if s.count() == 1 {
				close(begun)
				<-release
			}
			return nil
		}})
	appendN(t, db, "thing:1", 1)
	<-begun
	appendN(t, db, "thing:2", 1) // it waits for the one slot
	o := newOperator(t, db, keyline.RoleOperator)

	// Two ask at once: one act, two lines of audit, and both are told when it is done.
	type answer struct {
		drained keyline.DrainedWorker
		err     error
	}
	answers := make(chan answer, 2)
	for range 2 {
		go func() {
			d, err := o.DrainWorker(t.Context(), 1, "new kernel")
			answers <- answer{d, err}
		}()
	}
	testdb.Eventually(t, func() bool { return w.Health().State == "stopping" }, "the worker drains")
	// Before that the slot, once free, could still go to what waits for it.
	testdb.Eventually(t, func() bool { return freed(t, db) == 1 }, "what waits is handed back")
	select {
	case a := <-answers:
		t.Fatalf("drained while a handler runs: %+v", a)
	case <-w.Done():
		t.Fatal("done while a handler runs")
	default:
	}
	close(release)
	joined := 0
	for range 2 {
		a := <-answers
		if a.err != nil || a.drained.Name != "one" || a.drained.Worker != 1 || a.drained.StillRunning {
			t.Fatalf("%+v", a)
		}
		if a.drained.Joined {
			joined++
		}
	}
	<-w.Done()
	if joined != 1 {
		t.Errorf("%d of two joined", joined)
	}
	lines := must(o.Audit(t.Context(), keyline.AuditFilter{Action: "drain_worker"}))(t)
	if len(lines) != 2 || lines[0].Target != "worker one#1" || lines[0].Reason != "new kernel" || lines[0].Actor != "olga" {
		t.Errorf("audit: %+v", lines)
	}
	if got := s.of("c", "thing:1"); len(got) != 1 {
		t.Errorf("the running delivery: %+v", got)
	}
	if n := freed(t, db); n != 1 {
		t.Errorf("%d records were handed back", n)
	}
	if status := scalar[string](t, db.Pool(), "select status from keyline.workers"); status != "left" {
		t.Errorf("the worker is %s", status)
	}
	_, err := o.DrainWorker(t.Context(), 1, "again")
	wantError(t, err, keyline.ErrConflict, keyline.CodeNothingToDo)
	_, err = o.DrainWorker(t.Context(), 99, "what")
	wantError(t, err, keyline.ErrNotFound, keyline.CodeNotFound)
	if n := scalar[int](t, db.Pool(), "select count(*) from keyline.audit"); n != 2 {
		t.Errorf("%d lines of audit: what changes nothing writes none", n)
	}
	if list := must(o.Workers(t.Context()))(t); len(list) != 0 {
		t.Errorf("workers: %+v", list)
	}
	// It stays stopped, and a stop joins.
	if status, err := w.Stop(t.Context()); err != nil || !status.Left || status.Completed != 1 {
		t.Errorf("%+v %v", status, err)
	}
}

func TestADrainEndsRunAndLeavesTheOthersAlone(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	startWorker(t, db, keyline.Config{Name: "stays"}, recording(s, "c"))
	w := must(keyline.NewWorker(db.Pool(), keyline.Config{Name: "goes", Beside: "stays", Lease: shortLease}, recording(s, "c")))(t)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(t.Context()) }()
	<-w.Ready()
	o := newOperator(t, db, keyline.RoleOperator)
	must(o.DrainWorker(t.Context(), 2, ""))(t)
	if err := <-ended; err != nil {
		t.Errorf("Run: %v", err)
	}
	list := must(o.Workers(t.Context()))(t)
	if len(list) != 1 || list[0].Name != "stays" || list[0].DrainAt != nil {
		t.Errorf("workers: %+v", list)
	}
	appendN(t, db, "thing:1", 1)
	s.wait(t, 1)
}

func TestADrainThatNobodyHearsStaysAsked(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	exec(t, db.Pool(), `insert into keyline.workers (name, instance, host, pid, lease) values ('frozen', gen_random_uuid(), 'h', 1, '1 hour')`)
	o := newOperator(t, db, keyline.RoleOperator)
	for i := range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), toBeGiven)
		d, err := o.DrainWorker(ctx, 1, "patch")
		cancel()
		wantError(t, err, keyline.ErrUnavailable, keyline.CodeNotAppliedYet)
		if !errors.Is(err, context.DeadlineExceeded) || d.Joined != (i == 1) {
			t.Errorf("call %d: %+v %v", i, d, err)
		}
	}
	if list := must(o.Workers(t.Context()))(t); len(list) != 1 || list[0].DrainAt == nil {
		t.Errorf("workers: %+v", list)
	}
	// It dies: whoever waits is told so.
	answer := make(chan error, 1)
	go func() { _, err := o.DrainWorker(t.Context(), 1, "patch"); answer <- err }()
	testdb.Eventually(t, func() bool { return scalar[int](t, db.Pool(), "select count(*) from keyline.audit") == 3 }, "it asks")
	exec(t, db.Pool(), "update keyline.workers set status = 'lost', ended_at = clock_timestamp()")
	wantError(t, <-answer, keyline.ErrConflict, keyline.CodeWorkerNotLive)
	_, err := o.DrainWorker(t.Context(), 1, "patch")
	wantError(t, err, keyline.ErrConflict, keyline.CodeNothingToDo)
}

// Promise: who ended with claims that nobody has freed is listed until they are free, however long ago that was.
func TestWorkersThatEndedAreListedWhileTheirClaimsAreNotFree(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	exec(t, db.Pool(), `insert into keyline.workers (name, instance, host, pid, lease, status, ended_at)
		select n, gen_random_uuid(), 'h', 1, interval '15 seconds', left(n, 4), clock_timestamp() + ago::interval
		from (values ('lost now', '-1 minute'), ('lost long ago', '-1 day'), ('lost long ago, holding', '-1 day'),
			('left now', '-1 minute'), ('left, its handler runs', '10 seconds'), ('left long ago, holding', '-1 day')) as v(n, ago)`)
	for i, name := range []string{"lost long ago, holding", "left, its handler runs", "left long ago, holding"} {
		key := fmt.Sprintf("thing:%d", i)
		appendN(t, db, key, 1)
		exec(t, db.Pool(), `update keyline.mailboxes m set claimed_at = clock_timestamp(), token = nextval('keyline.tokens'), claimed_by = w.id
			from keyline.workers w, keyline.records r where w.name = $1 and r.record_key = $2 and m.record_id = r.id`, name, key)
	}
	o := newOperator(t, db, keyline.RoleOperator)
	listed := func() (names []string) {
		for _, w := range must(o.Workers(t.Context()))(t) {
			names = append(names, fmt.Sprintf("%s: %d", w.Name, w.Claims))
		}
		return names
	}
	if got, want := listed(), []string{"lost now: 0", "lost long ago, holding: 1", "left long ago, holding: 1"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	exec(t, db.Pool(), "select keyline.recover(10)")
	if got, want := listed(), []string{"lost now: 0"}; !slices.Equal(got, want) {
		t.Errorf("recovered: %q, want %q", got, want)
	}
}

func TestAWorkerThatFencesItselfIsStillDrained(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	w := startWorker(t, db, keyline.Config{Lease: shortLease}, recording(s, "c"))
	// It is taken for lost just when it was asked, and comes back as another one.
	exec(t, db.Pool(), "update keyline.workers set drain_at = clock_timestamp(), status = 'lost', ended_at = clock_timestamp()")
	<-w.Done()
	if got := scalar[string](t, db.Pool(), "select string_agg(status, ' ' order by id) from keyline.workers"); got != "lost left" {
		t.Errorf("its incarnations are %s", got)
	}
}

func TestAStopHastensADrain(t *testing.T) {
	t.Parallel()
	db, begun := testdb.New(t), make(chan struct{}, 1)
	w := startWorker(t, db, keyline.Config{Lease: shortLease, ShutdownGrace: time.Hour}, blocking("c", begun))
	appendN(t, db, "thing:1", 1)
	<-begun
	exec(t, db.Pool(), "update keyline.workers set drain_at = clock_timestamp()")
	testdb.Eventually(t, func() bool { return w.Health().State == "stopping" }, "the worker drains")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	status, err := w.Stop(ctx)
	if err != nil || !status.Left {
		t.Errorf("%+v %v", status, err)
	}
}

func TestDrainDeliversWhatIsDueAndStops(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	appendN(t, db, "thing:1", 3)
	appendN(t, db, "thing:2", 2)
	// From the beginning: the backfill belongs to what is due.
	later := failing("later")
	w := must(keyline.NewWorker(db.Pool(), keyline.Config{}, later,
		recording(s, "c", func(c *keyline.Consumer) { c.Start = keyline.Beginning() })))(t)
	report, err := w.Drain(t.Context(), keyline.DrainOptions{})
	if err != nil || !report.Drained || !report.Left || report.Completed != 5 {
		t.Fatalf("%+v %v", report, err)
	}
	inOrder(t, s.of("c", "thing:1"), 3)
	inOrder(t, s.of("c", "thing:2"), 2)
	if n := scalar[int](t, db.Pool(), "select count(*) from keyline.workers where status = 'live'"); n != 0 {
		t.Errorf("%d workers live", n)
	}
	select {
	case <-w.Done():
	default:
		t.Error("it is not done")
	}
	if _, err := w.Drain(t.Context(), keyline.DrainOptions{}); err == nil {
		t.Error("a second drain of one worker")
	}

	// What fails is due in a minute: that is not waited for.
	appendN(t, db, "thing:3", 1)
	w = must(keyline.NewWorker(db.Pool(), keyline.Config{}, later))(t)
	if report, err = w.Drain(t.Context(), keyline.DrainOptions{}); err != nil || !report.Drained || report.Failed != 1 {
		t.Fatalf("%+v %v", report, err)
	}
}

func TestDrainWaitsForRetriesWithinItsTime(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	w := must(keyline.NewWorker(db.Pool(), keyline.Config{}, keyline.Consumer{Name: "c", Types: []string{"*"}, Effect: keyline.None(),
		Start: keyline.Beginning(), Retry: quick(300*time.Millisecond, 300*time.Millisecond),
		Handle: func(_ context.Context, d *keyline.Delivery) error {
			if s.add(d); d.Attempt < 3 {
				return errFails
			}
			return nil
		}}))(t)
	appendN(t, db, "thing:1", 1)
	report, err := w.Drain(t.Context(), keyline.DrainOptions{Within: time.Minute})
	if err != nil || !report.Drained || report.Failed != 2 || report.Completed != 1 {
		t.Fatalf("%+v %v", report, err)
	}
}

func TestDrainEndsWithItsContextAndHandsBack(t *testing.T) {
	t.Parallel()
	db, begun := testdb.New(t), make(chan struct{}, 1)
	registered(t, db, keyline.Config{}, failing("c"))
	appendN(t, db, "thing:1", 1)
	w := must(keyline.NewWorker(db.Pool(), quickStop, blocking("c", begun)))(t)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-begun; cancel() }()
	report, err := w.Drain(ctx, keyline.DrainOptions{})
	if !errors.Is(err, context.Canceled) || report.Drained || !report.Left {
		t.Fatalf("%+v %v", report, err)
	}
	if n := scalar[int](t, db.Pool(), "select count(*) from keyline.mailboxes where claimed_by is null"); n != 1 {
		t.Errorf("%d records were handed back", n)
	}
}
