package keyline_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
)

// switched is a consumer that fails until it is mended, and records what it gets.
type switched struct {
	*seen
	mu     sync.Mutex
	mended bool
}

func newSwitched() *switched { return &switched{seen: newSeen()} }

func (s *switched) mend() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mended = true
}

func (s *switched) consumer(name string, change ...func(*keyline.Consumer)) keyline.Consumer {
	c := keyline.Consumer{Name: name, Types: []string{"*"}, Effect: keyline.None(), Retry: quick(),
		Handle: func(_ context.Context, d *keyline.Delivery) error {
			s.add(d)
			s.mu.Lock()
			defer s.mu.Unlock()
			if !s.mended {
				return errFails
			}
			return nil
		}}
	for _, f := range change {
		f(&c)
	}
	return c
}

func park(c *keyline.Consumer) { c.OnDead = keyline.Park }

// backoff gives a consumer a long backoff instead of a dead letter.
func backoff(c *keyline.Consumer) { c.Retry = quick(time.Hour) }

func seqs(list []keyline.Delivery) (out []int64) {
	for _, d := range list {
		out = append(out, d.Seq)
	}
	return out
}

func eventID(t *testing.T, db *testdb.DB, seq int64) uuid.UUID {
	t.Helper()
	return must(uuid.Parse(scalar[string](t, db.Pool(), "select e.id::text from keyline.events e join keyline.records r on r.id = e.record_id where r.record_key = 'thing:1' and seq = $1", seq)))(t)
}

// deadLetters waits until so many are open and no work is left.
func deadLetters(t *testing.T, db *testdb.DB, n int) {
	t.Helper()
	testdb.Eventually(t, func() bool {
		return scalar[int](t, db.Pool(), "select count(*) from keyline.dead_letters where status = 'open'") == n
	}, "%d dead letters", n)
}

// wantAudit checks the newest line of the audit.
func wantAudit(t *testing.T, o keyline.Operator, action, target, reason string) keyline.AuditEntry {
	t.Helper()
	list := must(o.Audit(t.Context(), keyline.AuditFilter{Limit: 1}))(t)
	if len(list) != 1 || list[0].Action != action || list[0].Target != target || list[0].Reason != reason || list[0].Actor != "olga" || list[0].SessionUser == "" {
		t.Fatalf("audit %+v, want %s of %q because %q", list, action, target, reason)
	}
	return list[0]
}

func TestRetriedDeadLetterKeepsItsEventAndIsMarkedRedelivered(t *testing.T) {
	t.Parallel()
	for _, parked := range []bool{false, true} {
		t.Run(fmt.Sprintf("parked=%v", parked), func(t *testing.T) {
			t.Parallel()
			db, s, fine := testdb.New(t), newSwitched(), newSeen()
			startWorker(t, db, keyline.Config{}, recording(fine, "fine"), s.consumer("c", func(c *keyline.Consumer) {
				if parked {
					park(c)
				}
			}))
			appendN(t, db, "thing:1", 1)
			deadLetters(t, db, 1)
			fine.wait(t, 1)
			o := newOperator(t, db, keyline.RoleOperator)
			s.mend()
			act := must(o.RetryDeadLetter(t.Context(), 1, "mended"))(t)
			if act.DeadLetter != 1 || act.Seq != 1 || act.Consumer != "c" || act.Record != "thing:1" || act.Outcome == "" {
				t.Errorf("%+v", act)
			}
			s.wait(t, 2)
			settled(t, db)
			got := s.of("c", "thing:1")
			if got[1].ID != got[0].ID || got[1].Attempt != 2 || !got[1].Redelivered || got[1].IdempotencyKey != got[0].IdempotencyKey || got[1].Mode != keyline.Replay {
				t.Errorf("first %+v\nthen %+v", got[0], got[1])
			}
			entry := wantAudit(t, o, "retry_dead_letter", "dead letter 1: thing:1 #1 for c", "mended")
			if entry.AppliedAt == nil || entry.Done == nil || !*entry.Done {
				t.Errorf("audit: %+v", entry)
			}
			if d := must(o.DeadLetters(t.Context(), keyline.DeadLetterFilter{}))(t); len(d) != 1 || d[0].Status != "delivered" {
				t.Errorf("dead letters: %+v", d)
			}
			// Again: there is nothing to do, and a success is never repeated.
			_, err := o.RetryDeadLetter(t.Context(), 1, "again")
			wantError(t, err, keyline.ErrConflict, keyline.CodeNothingToDo)
			for _, consumer := range []string{"c", "fine"} {
				_, err = o.RetryConsumer(t.Context(), got[0].ID, consumer, "again")
				wantError(t, err, keyline.ErrConflict, keyline.CodeNothingToDo)
			}
			_, err = o.RetryEvent(t.Context(), got[0].ID, "again")
			wantError(t, err, keyline.ErrConflict, keyline.CodeNothingToDo)
			if s.count() != 2 || fine.count() != 1 {
				t.Errorf("%d and %d deliveries", s.count(), fine.count())
			}
		})
	}
}

func TestRetryConsumerRunsAHeadInBackoffNowAndNoSibling(t *testing.T) {
	t.Parallel()
	db, s, other, fine := testdb.New(t), newSwitched(), newSwitched(), newSeen()
	startWorker(t, db, keyline.Config{}, recording(fine, "fine"), s.consumer("c", backoff), other.consumer("other", backoff))
	appendN(t, db, "thing:1", 2)
	awaitReason(t, db, "c", keyline.ReasonBackoff)
	awaitReason(t, db, "other", keyline.ReasonBackoff)
	o := newOperator(t, db, keyline.RoleOperator)
	s.mend()
	act := must(o.RetryConsumer(t.Context(), eventID(t, db, 1), "c", "mended"))(t)
	if act.DeadLetter != 0 || act.Seq != 1 {
		t.Errorf("%+v", act)
	}
	s.wait(t, 3)
	if got := seqs(s.of("c", "thing:1")); !slices.Equal(got, []int64{1, 1, 2}) {
		t.Errorf("delivered %v", got)
	}
	if other.count() != 1 {
		t.Errorf("the sibling ran %d times", other.count())
	}
	// An event that is not at the head is not retried.
	_, err := o.RetryConsumer(t.Context(), eventID(t, db, 2), "other", "too early")
	wantError(t, err, keyline.ErrConflict, keyline.CodeNothingToDo)
	_, err = o.RetryConsumer(t.Context(), eventID(t, db, 1), "nobody", "who")
	wantError(t, err, keyline.ErrNotFound, keyline.CodeNotFound)
	_, err = o.RetryConsumer(t.Context(), uuid.New(), "c", "what")
	wantError(t, err, keyline.ErrNotFound, keyline.CodeNotFound)
}

func TestRetryEventRetriesEachConsumerThatFailed(t *testing.T) {
	t.Parallel()
	db, dead, waits, fine := testdb.New(t), newSwitched(), newSwitched(), newSeen()
	startWorker(t, db, keyline.Config{}, recording(fine, "fine"), dead.consumer("dead"), waits.consumer("waits", backoff))
	appendN(t, db, "thing:1", 1)
	deadLetters(t, db, 1)
	awaitReason(t, db, "waits", keyline.ReasonBackoff)
	dead.mend()
	waits.mend()
	acts := must(newOperator(t, db, keyline.RoleOperator).RetryEvent(t.Context(), eventID(t, db, 1), "mended"))(t)
	if len(acts) != 2 {
		t.Fatalf("%+v", acts)
	}
	dead.wait(t, 2)
	waits.wait(t, 2)
	settled(t, db)
	if fine.count() != 1 {
		t.Errorf("a success was repeated")
	}
}

func TestResolveGivesADeadLetterUpWithItsReason(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSwitched()
	startWorker(t, db, keyline.Config{}, s.consumer("c", park))
	appendN(t, db, "thing:1", 2)
	deadLetters(t, db, 1)
	o := newOperator(t, db, keyline.RoleOperator)
	_, err := o.ResolveDeadLetter(t.Context(), 1, " ")
	wantError(t, err, keyline.ErrInvalid, keyline.CodeInvalidArgument)
	s.mend()
	must(o.ResolveDeadLetter(t.Context(), 1, "customer left"))(t)
	s.wait(t, 2)
	settled(t, db)
	if got := seqs(s.of("c", "thing:1")); !slices.Equal(got, []int64{1, 2}) {
		t.Errorf("delivered %v", got)
	}
	d := must(o.DeadLetters(t.Context(), keyline.DeadLetterFilter{}))(t)[0]
	if d.Status != "resolved" || d.ResolvedBy != "olga" || d.Resolution != "customer left" {
		t.Errorf("%+v", d)
	}
	wantAudit(t, o, "resolve_dead_letter", "dead letter 1: thing:1 #1 for c", "customer left")
	_, err = o.ResolveDeadLetter(t.Context(), 1, "again")
	wantError(t, err, keyline.ErrConflict, keyline.CodeNothingToDo)
	_, err = o.ResolveDeadLetter(t.Context(), 99, "what")
	wantError(t, err, keyline.ErrNotFound, keyline.CodeNotFound)
}

func TestSkipHeadGivesUpOneEventAndNoOther(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSwitched()
	startWorker(t, db, keyline.Config{}, s.consumer("c", backoff))
	appendN(t, db, "thing:1", 2)
	awaitReason(t, db, "c", keyline.ReasonBackoff)
	o := newOperator(t, db, keyline.RoleOperator)
	s.mend()
	act := must(o.SkipHead(t.Context(), keyline.Key{Record: "thing:1"}, "c", 0, "of no use"))(t)
	s.wait(t, 2)
	settled(t, db)
	if got := seqs(s.of("c", "thing:1")); act.Seq != 1 || !slices.Equal(got, []int64{1, 2}) {
		t.Errorf("skipped %d, delivered %v", act.Seq, got)
	}
	if reason := scalar[string](t, db.Pool(), "select reason from keyline.skips where code = 'operator' and seq = 1"); reason != "of no use" {
		t.Errorf("skipped because %q", reason)
	}
	_, err := o.SkipHead(t.Context(), keyline.Key{Record: "thing:1"}, "c", 0, "again")
	wantError(t, err, keyline.ErrConflict, keyline.CodeNothingToDo)
	_, err = o.SkipHead(t.Context(), keyline.Key{Record: "thing:2"}, "c", 0, "what")
	wantError(t, err, keyline.ErrNotFound, keyline.CodeNotFound)
}

func TestACommandWaitsForAWorkerAndIsGivenOnce(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSwitched()
	w := startWorker(t, db, keyline.Config{}, s.consumer("c"))
	appendN(t, db, "thing:1", 1)
	deadLetters(t, db, 1)
	settled(t, db)
	stop(t, w)
	o := newOperator(t, db, keyline.RoleOperator)
	var commands []int64
	for i := range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), toBeGiven)
		act, err := o.RetryDeadLetter(ctx, 1, "mended")
		cancel()
		wantError(t, err, keyline.ErrUnavailable, keyline.CodeNotAppliedYet)
		if !errors.Is(err, context.DeadlineExceeded) || act.Joined != (i == 1) {
			t.Errorf("call %d: %+v %v", i, act, err)
		}
		commands = append(commands, act.Command)
	}
	if commands[0] != commands[1] || commands[0] == 0 {
		t.Errorf("commands %v", commands)
	}
	if n := scalar[int](t, db.Pool(), "select count(*) from keyline.commands"); n != 1 {
		t.Errorf("%d commands", n)
	}
	if list := must(o.Audit(t.Context(), keyline.AuditFilter{Action: "retry_dead_letter"}))(t); len(list) != 2 {
		t.Errorf("%d lines of audit for two acts", len(list))
	}
	s.mend()
	startWorker(t, db, keyline.Config{}, s.consumer("c"))
	s.wait(t, 2)
	settled(t, db)
	if s.count() != 2 {
		t.Errorf("%d deliveries", s.count())
	}
}

func TestConsumerStatusActsAreAuditedAndIdempotent(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	startWorker(t, db, keyline.Config{}, recording(s, "c"))
	o := newOperator(t, db, keyline.RoleOperator)
	for _, step := range []struct {
		act    func(context.Context, string, string) error
		status string
	}{
		{o.PauseConsumer, "paused"}, {o.ResumeConsumer, "active"}, {o.DisableConsumer, "disabled"}, {o.RetireConsumer, "retired"},
	} {
		if err := step.act(t.Context(), "c", "because"); err != nil {
			t.Fatalf("%s: %v", step.status, err)
		}
		if c := must(o.InspectConsumer(t.Context(), "c"))(t); c.Status != step.status {
			t.Errorf("it is %s, not %s", c.Status, step.status)
		}
		wantAudit(t, o, "consumer_"+step.status, "c", "because")
		again := step.act(t.Context(), "c", "because")
		wantError(t, again, keyline.ErrConflict, keyline.CodeNothingToDo)
		if errors.Is(again, keyline.ErrUnavailable) {
			t.Errorf("it reads as a lost connection: %v", again)
		}
		wantError(t, step.act(t.Context(), "nobody", "because"), keyline.ErrNotFound, keyline.CodeNotFound)
	}
	wantError(t, o.RetireConsumer(t.Context(), "c", ""), keyline.ErrInvalid, keyline.CodeInvalidArgument)
	if n := scalar[int](t, db.Pool(), "select count(*) from keyline.audit"); n != 4 {
		t.Errorf("%d lines of audit for four changes", n)
	}
}

func TestRecoverFreesClaimsOfWorkersThatStaySilent(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	registered(t, db, keyline.Config{}, recording(s, "c"))
	appendN(t, db, "thing:1", 1)
	o := newOperator(t, db, keyline.RoleOperator)
	_, err := o.RecoverStaleClaims(t.Context(), "nothing is wrong")
	wantError(t, err, keyline.ErrConflict, keyline.CodeNothingToDo)
	exec(t, db.Pool(), `insert into keyline.workers (name, instance, host, pid, lease, consumers, beat_at)
		values ('silent', gen_random_uuid(), 'h', 1, '100 milliseconds', '{c}', now() - interval '1 hour')`)
	exec(t, db.Pool(), `update keyline.mailboxes set claimed_by = (select max(id) from keyline.workers), claimed_at = now()`)
	workers := must(o.Workers(t.Context()))(t)
	if len(workers) == 0 || !workers[len(workers)-1].Silent {
		t.Errorf("nobody says that it is silent: %+v", workers)
	}
	if w := must(o.Why(t.Context(), keyline.Key{Record: "thing:1"}))(t); !strings.Contains(w.Sentence, "has been silent") {
		t.Error(w.Sentence)
	}
	r := must(o.RecoverStaleClaims(t.Context(), "host is gone"))(t)
	if len(r.Workers) != 1 || r.Claims != 1 {
		t.Errorf("%+v", r)
	}
	wantAudit(t, o, "recover_stale_claims", "", "host is gone")
	if n := scalar[int](t, db.Pool(), "select crashes from keyline.mailboxes where claimed_by is null"); n != 1 {
		t.Errorf("crashes %d", n)
	}
}

func TestAViewerActsOnNothingAndSeesNothingInternal(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSwitched()
	startWorker(t, db, keyline.Config{}, s.consumer("c", func(c *keyline.Consumer) { c.Internal = true }))
	appendN(t, db, "thing:1", 1)
	deadLetters(t, db, 1)
	exec(t, db.Pool(), "insert into keyline.event_types (type, version, internal) values ('thing.done', 1, true)")
	v := newOperator(t, db, keyline.RoleViewer)
	ctx, id := t.Context(), eventID(t, db, 1)
	for name, act := range map[string]func() error{
		"retry consumer": func() error { _, err := v.RetryConsumer(ctx, id, "c", "r"); return err },
		"retry event":    func() error { _, err := v.RetryEvent(ctx, id, "r"); return err },
		"retry":          func() error { _, err := v.RetryDeadLetter(ctx, 1, "r"); return err },
		"resolve":        func() error { _, err := v.ResolveDeadLetter(ctx, 1, "r"); return err },
		"skip":           func() error { _, err := v.SkipHead(ctx, keyline.Key{Record: "thing:1"}, "c", 0, "r"); return err },
		"pause":          func() error { return v.PauseConsumer(ctx, "c", "r") },
		"resume":         func() error { return v.ResumeConsumer(ctx, "c", "r") },
		"disable":        func() error { return v.DisableConsumer(ctx, "c", "r") },
		"retire":         func() error { return v.RetireConsumer(ctx, "c", "r") },
		"recover":        func() error { _, err := v.RecoverStaleClaims(ctx, "r"); return err },
		"retry in bulk": func() error {
			_, err := v.RetryDeadLetters(ctx, keyline.DeadLetterFilter{}, "r", keyline.BulkOptions{})
			return err
		},
		"resolve in bulk": func() error {
			_, err := v.ResolveDeadLetters(ctx, keyline.DeadLetterFilter{}, "r", keyline.BulkOptions{})
			return err
		},
		"an actor must act": func() error {
			o := must(keyline.NewOperator(db.Pool(), keyline.OperatorConfig{Role: keyline.RoleOperator}))(t)
			_, err := o.RetryDeadLetter(ctx, 1, "r")
			wantError(t, err, keyline.ErrInvalid, keyline.CodeInvalidArgument)
			return &keyline.Error{Code: keyline.CodePermissionDenied}
		},
	} {
		t.Run(name, func(t *testing.T) { wantError(t, act(), nil, keyline.CodePermissionDenied) })
	}
	if n := scalar[int](t, db.Pool(), "select (select count(*) from keyline.audit) + (select count(*) from keyline.commands)"); n != 0 {
		t.Errorf("%d rows were written", n)
	}
	o := newOperator(t, db, keyline.RoleOperator)
	key := keyline.Key{Record: "thing:1"}
	if n := len(must(v.DeadLetters(ctx, keyline.DeadLetterFilter{}))(t)); n != 0 {
		t.Errorf("a viewer sees %d dead letters of an internal type", n)
	}
	if n := len(must(o.DeadLetters(ctx, keyline.DeadLetterFilter{}))(t)); n != 1 {
		t.Errorf("an operator sees %d", n)
	}
	if n := len(must(v.InspectRecord(ctx, key, 10))(t).Events); n != 0 {
		t.Errorf("a viewer sees %d events", n)
	}
	if e := must(o.InspectRecord(ctx, key, 10))(t).Events; len(e) != 1 || e[0].Deliveries["c"] != "dead_letter" {
		t.Errorf("an operator sees %+v", e)
	}
	_, err := v.InspectEvent(ctx, id)
	wantError(t, err, keyline.ErrNotFound, keyline.CodeNotFound)
	if e := must(o.InspectEvent(ctx, id))(t); e.Record != "thing:1" || e.Seq != 1 || e.Deliveries["c"] != "dead_letter" {
		t.Errorf("an operator sees %+v", e)
	}
}

func TestNoActWithoutItsAudit(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSwitched()
	w := startWorker(t, db, keyline.Config{}, s.consumer("c", park))
	appendN(t, db, "thing:1", 1)
	deadLetters(t, db, 1)
	settled(t, db)
	stop(t, w)
	exec(t, db.Pool(), `insert into keyline.workers (name, instance, host, pid, lease, beat_at) values ('silent', gen_random_uuid(), 'h', 1, '10 milliseconds', now() - interval '1 hour')`)
	exec(t, db.Pool(), `insert into keyline.mailboxes (record_id, due_at, claimed_by, claimed_at) select 1, now(), max(id), now() from keyline.workers`)
	exec(t, db.Pool(), `alter table keyline.audit add constraint full_disk check (false)`)
	state := func() string {
		return scalar[string](t, db.Pool(), `select concat((select count(*) from keyline.commands), (select count(*) from keyline.audit),
			(select status from keyline.consumers), (select status from keyline.workers where name = 'silent'), (select claimed_by from keyline.mailboxes))`)
	}
	before := state()
	o, ctx := newOperator(t, db, keyline.RoleOperator), t.Context()
	_, retry := o.RetryDeadLetter(ctx, 1, "r")
	_, resolve := o.ResolveDeadLetter(ctx, 1, "r")
	_, skip := o.SkipHead(ctx, keyline.Key{Record: "thing:1"}, "c", 0, "r")
	_, recovery := o.RecoverStaleClaims(ctx, "r")
	for name, err := range map[string]error{"retry": retry, "resolve": resolve, "skip": skip, "recover": recovery,
		"pause": o.PauseConsumer(ctx, "c", "r"), "retire": o.RetireConsumer(ctx, "c", "r")} {
		wantError(t, err, keyline.ErrInvalid, keyline.CodeConstraint)
		if after := state(); after != before {
			t.Errorf("%s changed %s to %s", name, before, after)
		}
	}
}
