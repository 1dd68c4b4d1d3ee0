package keyline_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
	"github.com/keylinehq/keyline/store"
)

func newOperator(t *testing.T, db *testdb.DB, role keyline.Role) keyline.Operator {
	t.Helper()
	return must(keyline.NewOperator(db.Pool(), keyline.OperatorConfig{Actor: "olga", Role: role}))(t)
}

// whyOf finds a consumer in a Why.
func whyOf(w keyline.Why, consumer string) keyline.WhyConsumer {
	for _, c := range w.Consumers {
		if c.Name == consumer {
			return c
		}
	}
	return keyline.WhyConsumer{}
}

// awaitReason waits until why gives a consumer this reason on record "thing:1",
// and show the same one.
func awaitReason(t *testing.T, db *testdb.DB, consumer string, want keyline.Reason) (w keyline.Why, c keyline.WhyConsumer) {
	t.Helper()
	o := newOperator(t, db, keyline.RoleViewer)
	testdb.Eventually(t, func() bool {
		w = must(o.Why(t.Context(), keyline.Key{Record: "thing:1"}))(t)
		c = whyOf(w, consumer)
		shown := must(o.InspectRecord(t.Context(), keyline.Key{Record: "thing:1"}, 0))(t)
		return c.Reason == want && slices.ContainsFunc(shown.Positions, func(p store.RecordPosition) bool {
			return p.Consumer == consumer && p.State == string(want) && p.Seq == c.Position
		})
	}, "why and show say %s of %s", want, consumer)
	return w, c
}

// says checks that the sentence leads on.
func says(t *testing.T, w keyline.Why, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(w.Sentence, p) {
			t.Errorf("the sentence does not say %q: %s", p, w.Sentence)
		}
	}
}

// failing is a consumer that always fails.
func failing(name string, change ...func(*keyline.Consumer)) keyline.Consumer {
	c := keyline.Consumer{Name: name, Types: []string{"*"}, Effect: keyline.None(),
		Handle: func(context.Context, *keyline.Delivery) error { return errFails }}
	for _, f := range change {
		f(&c)
	}
	return c
}

// blocking is a consumer that blocks until its worker stops.
func blocking(name string, begun chan<- struct{}) keyline.Consumer {
	return keyline.Consumer{Name: name, Types: []string{"*"}, Effect: keyline.None(),
		Handle: func(ctx context.Context, _ *keyline.Delivery) error {
			begun <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		}}
}

// quickStop is a worker's configuration for tests whose handlers block.
var quickStop = keyline.Config{ShutdownGrace: time.Millisecond}

func TestWhyDone(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	startWorker(t, db, keyline.Config{}, recording(s, "c"))
	appendN(t, db, "thing:1", 2)
	settled(t, db)
	w, c := awaitReason(t, db, "c", keyline.ReasonDone)
	if w.Head != 2 || w.Cursor != 2 || c.Position != 2 || c.DeadLetter != nil || c.Worker != nil {
		t.Errorf("%+v", w)
	}
	says(t, w, "done with thing:1", "event 2")
	if _, err := newOperator(t, db, keyline.RoleViewer).Why(t.Context(), keyline.Key{Record: "nothing:1"}); err == nil {
		t.Error("why of a record that is not there")
	} else {
		wantError(t, err, keyline.ErrNotFound, keyline.CodeNotFound)
	}
}

// registered registers consumers and stops their worker again.
func registered(t *testing.T, db *testdb.DB, cfg keyline.Config, consumers ...keyline.Consumer) {
	t.Helper()
	stop(t, startWorker(t, db, cfg, consumers...))
}

func TestWhyReady(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	registered(t, db, keyline.Config{}, recording(s, "c"))
	exec(t, db.Pool(), `insert into keyline.workers (name, instance, host, pid, lease, consumers) values ('busy', gen_random_uuid(), 'h', 1, '1 hour', '{c}')`)
	appendN(t, db, "thing:1", 1)
	w, c := awaitReason(t, db, "c", keyline.ReasonReady)
	if c.Since == nil || c.Position != 0 || w.Head != 1 {
		t.Errorf("%+v", c)
	}
	says(t, w, "due", "keyline status")
	exec(t, db.Pool(), `update keyline.workers set lease = '1 s', beat_at = now() - interval '1 min' where name = 'busy'`)
	says(t, must(newOperator(t, db, keyline.RoleViewer).Why(t.Context(), keyline.Key{Record: "thing:1"}))(t), "busy#2, which would run it, has been silent")
}

func TestWhySaysWhoWasDisabled(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	startWorker(t, db, keyline.Config{}, recording(s, "c"), recording(s, "off"))
	if err := newOperator(t, db, keyline.RoleOperator).DisableConsumer(t.Context(), "off", "not needed"); err != nil {
		t.Fatal(err)
	}
	appendN(t, db, "thing:1", 1)
	w, _ := awaitReason(t, db, "c", keyline.ReasonDone)
	if len(w.Consumers) != 1 {
		t.Errorf("%+v", w.Consumers)
	}
	says(t, w, "done with thing:1", "Disabled, so that events pass: off.")
}

func TestWhyClaimed(t *testing.T) {
	t.Parallel()
	db, begun := testdb.New(t), make(chan struct{}, 1)
	startWorker(t, db, quickStop, blocking("c", begun))
	appendN(t, db, "thing:1", 1)
	<-begun
	w, c := awaitReason(t, db, "c", keyline.ReasonClaimed)
	if c.Worker == nil || *c.Worker != 1 || c.Since == nil {
		t.Errorf("%+v", c)
	}
	says(t, w, "#1 has it since", "handler")
}

func TestWhyClaimedByALostWorker(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	registered(t, db, keyline.Config{}, recording(s, "c"))
	appendN(t, db, "thing:1", 1)
	exec(t, db.Pool(), `update keyline.mailboxes set claimed_by = 1, claimed_at = now()`)
	w := must(newOperator(t, db, keyline.RoleViewer).Why(t.Context(), keyline.Key{Record: "thing:1"}))(t)
	says(t, w, "#1 has claimed thing:1 and does not live any more", "start one", "keyline recover")
}

func TestWhyBackoff(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	startWorker(t, db, keyline.Config{}, failing("c"))
	appendN(t, db, "thing:1", 1)
	w, c := awaitReason(t, db, "c", keyline.ReasonBackoff)
	if c.NextAttemptAt == nil || c.Since == nil || !c.NextAttemptAt.After(*c.Since) {
		t.Errorf("%+v", c)
	}
	if c.Attempt != 1 || c.ErrorCode != "error" || c.NextSeq != 1 || c.EventID == "" {
		t.Errorf("%+v", c)
	}
	says(t, w, "attempt 1 failed (error)", "keyline retry "+scalar[string](t, db.Pool(), "select id::text from keyline.events")+" --consumer c")
}

func TestWhyParked(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	startWorker(t, db, keyline.Config{}, failing("c", func(c *keyline.Consumer) { c.OnDead, c.Retry = keyline.Park, quick() }))
	appendN(t, db, "thing:1", 2)
	w, c := awaitReason(t, db, "c", keyline.ReasonParked)
	if c.DeadLetter == nil || *c.DeadLetter != 1 || c.Since == nil {
		t.Errorf("%+v", c)
	}
	says(t, w, "event 1", "after 1 attempts (error)", "keyline dead-letters retry 1", "keyline dead-letters resolve 1 --reason")
}

func TestWhyParkedForAVersion(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	startWorker(t, db, keyline.Config{}, failing("c", func(c *keyline.Consumer) {
		c.Versions, c.OnUnsupported = []int{2}, keyline.WaitUnsupported
	}))
	appendN(t, db, "thing:1", 1)
	w, _ := awaitReason(t, db, "c", keyline.ReasonParked)
	says(t, w, "does not support the event's version", "keyline skip thing:1 c --reason")
}

func TestWhyUnhosted(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	registered(t, db, keyline.Config{}, recording(s, "c"))
	appendN(t, db, "thing:1", 1)
	w, _ := awaitReason(t, db, "c", keyline.ReasonUnhosted)
	says(t, w, "no live worker runs it", "none lives at all")
}

func TestWhyLooksNoConsumerDoneWhereItHasNotLookedToTheEnd(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	registered(t, db, keyline.Config{}, recording(s, "c", func(c *keyline.Consumer) { c.Types = []string{"wanted"} }))
	events := make([]keyline.NewEvent, 1001)
	for i := range events {
		events[i] = keyline.NewEvent{Key: keyline.Key{Record: "thing:1"}, Type: "other"}
	}
	events[1000].Type = "wanted"
	must(newClient(t, keyline.ClientConfig{}).AppendMany(t.Context(), db.Pool(), events))(t)
	if _, c := awaitReason(t, db, "c", keyline.ReasonUnhosted); c.NextSeq != 1001 {
		t.Errorf("next is %d", c.NextSeq)
	}
}

func TestWhyPaused(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	startWorker(t, db, keyline.Config{}, recording(s, "c"))
	if err := newOperator(t, db, keyline.RoleOperator).PauseConsumer(t.Context(), "c", "maintenance"); err != nil {
		t.Fatal(err)
	}
	appendN(t, db, "thing:1", 1)
	w, c := awaitReason(t, db, "c", keyline.ReasonPaused)
	if c.Since == nil {
		t.Errorf("%+v", c)
	}
	says(t, w, "it is paused", "keyline consumers resume c")
}

func TestAnIdleWorkerDeliversNothingToAConsumerThatWasPausedBefore(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	startWorker(t, db, keyline.Config{}, recording(s, "goes"), recording(s, "rests"))
	appendN(t, db, "thing:1", 1)
	s.wait(t, 2)
	idle := func() bool { return scalar[int](t, db.Pool(), "select count(*) from keyline.mailboxes") == 0 }
	testdb.Eventually(t, idle, "the worker to be idle")
	if err := newOperator(t, db, keyline.RoleOperator).PauseConsumer(t.Context(), "rests", ""); err != nil {
		t.Fatal(err)
	}
	appendN(t, db, "thing:2", 1) // nobody has told the worker, which is woken by this
	testdb.Eventually(t, func() bool { return len(s.of("goes", "thing:2")) == 1 && idle() }, "the other consumer to be done")
	if len(s.of("rests", "thing:2")) != 0 {
		t.Error("delivered to a consumer that was paused before it was appended")
	}
}

func TestWhyBreakerOpen(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	startWorker(t, db, keyline.Config{Lease: shortLease}, failing("c", func(c *keyline.Consumer) {
		c.Breaker = keyline.Breaker{MinRuns: 1, CoolDown: time.Hour}
	}))
	appendN(t, db, "other:1", 1)
	// Published with the worker's lease.
	testdb.Eventually(t, func() bool {
		return scalar[string](t, db.Pool(), "select coalesce(state #>> '{consumers,0,breaker}', '') from keyline.workers") == "open"
	}, "the breaker opens")
	appendN(t, db, "thing:1", 1)
	w, c := awaitReason(t, db, "c", keyline.ReasonBreakerOpen)
	if c.Worker == nil || *c.Worker != 1 {
		t.Errorf("%+v", c)
	}
	says(t, w, "fails on many records", "probe")
}

func TestWhyBackfilling(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	appendN(t, db, "thing:1", 1)
	// The backfill waits for a record that somebody has locked.
	tx := must(db.Connect().Begin(t.Context()))(t)
	exec(t, tx, "select from keyline.records for update")
	startWorker(t, db, keyline.Config{}, recording(s, "c", func(c *keyline.Consumer) { c.Start = keyline.Beginning() }))
	w, c := awaitReason(t, db, "c", keyline.ReasonBackfilling)
	if c.Since == nil {
		t.Errorf("%+v", c)
	}
	says(t, w, "being prepared")
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.wait(t, 1)
}

func TestWhyAppenderInFlight(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	startWorker(t, db, keyline.Config{}, recording(s, "c"))
	appendN(t, db, "thing:1", 1)
	settled(t, db)
	tx := must(db.Connect().Begin(t.Context()))(t)
	if _, err := newClient(t, keyline.ClientConfig{}).Append(t.Context(), tx, keyline.NewEvent{Key: keyline.Key{Record: "thing:1"}, Type: "t"}); err != nil {
		t.Fatal(err)
	}
	w, _ := awaitReason(t, db, "c", keyline.ReasonAppenderInFlight)
	says(t, w, "a transaction that appends to it is open", "pg_stat_activity")
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.wait(t, 2)
	settled(t, db)
	awaitReason(t, db, "c", keyline.ReasonDone)
}

func TestWhyLockstep(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	startWorker(t, db, keyline.Config{Ordering: keyline.Lockstep}, recording(s, "fast"), failing("slow"))
	appendN(t, db, "thing:1", 2)
	w, _ := awaitReason(t, db, "fast", keyline.ReasonLockstep)
	if r := whyOf(w, "slow").Reason; r != keyline.ReasonBackoff {
		t.Errorf("slow: %s", r)
	}
	says(t, w, "slow waits with event 1", "One more")
}

func TestWhyScope(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	startWorker(t, db, keyline.Config{}, recording(s, "held"), failing("holds", func(c *keyline.Consumer) { c.Scope = keyline.AllForOne }))
	appendN(t, db, "thing:1", 1)
	awaitReason(t, db, "holds", keyline.ReasonBackoff)
	appendN(t, db, "thing:1", 1)
	awaitReason(t, db, "held", keyline.ReasonScope)
	if n := len(s.of("held", "thing:1")); n > 1 {
		t.Errorf("it was given %d", n)
	}
}

// codedFailure fails with a code of its own.
type codedFailure struct{}

func (codedFailure) Error() string     { return "SECRETMESSAGE" }
func (codedFailure) ErrorCode() string { return "secretcode" }

// Promise: a viewer is told that a consumer waits on a record, and nothing of the event where its type is internal.
func TestWhyTellsAViewerNothingOfAnInternalEvent(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	secret := func(c *keyline.Consumer) {
		c.Internal, c.Breaker.Disabled, c.Types = true, true, []string{c.Name}
		c.Handle = func(context.Context, *keyline.Delivery) error { return codedFailure{} }
	}
	startWorker(t, db, keyline.Config{}, failing("parks", secret, park, func(c *keyline.Consumer) { c.Retry = quick() }),
		failing("waits", secret, backoff), failing("dies", secret, func(c *keyline.Consumer) { c.Retry = quick() }),
		failing("open", func(c *keyline.Consumer) { secret(c); backoff(c) }))
	client := newClient(t, keyline.ClientConfig{})
	key := func(of string) keyline.Key { return keyline.Key{Record: "of " + of} }
	ids := map[string]string{}
	for _, of := range []string{"parks", "waits", "dies", "open"} {
		if of != "open" {
			exec(t, db.Pool(), "insert into keyline.event_types (type, version, internal) values ('"+of+"', 1, true)")
		}
		ids[of] = must(client.Append(t.Context(), db.Pool(), keyline.NewEvent{Key: key(of), Type: of}))(t).ID.String()
	}
	deadLetters(t, db, 2)
	testdb.Eventually(t, func() bool {
		return scalar[int](t, db.Pool(), "select count(*) from keyline.checkpoints where state in ('backoff', 'parked')") == 3
	}, "the others fail")
	// It is delivered again, later.
	exec(t, db.Pool(), `update keyline.dead_letters set status = 'retrying', due_at = clock_timestamp() + interval '1 hour'
		where consumer_id = (select id from keyline.consumers where name = 'dies')`)
	o, v := newOperator(t, db, keyline.RoleOperator), newOperator(t, db, keyline.RoleViewer)
	for of, want := range map[string]struct {
		reason keyline.Reason
		says   string
	}{
		"parks": {keyline.ReasonParked, "it is parked there."},
		"waits": {keyline.ReasonBackoff, "waits with event 1 of of waits: it failed, and is due again at "},
		"dies":  {keyline.ReasonBackoff, "dies delivers a dead letter again at "},
		"open":  {keyline.ReasonBackoff, "attempt 1 failed (secretcode)"},
	} {
		t.Run(of, func(t *testing.T) {
			all, some := must(o.Why(t.Context(), key(of)))(t), must(v.Why(t.Context(), key(of)))(t)
			says(t, some, want.says)
			a, s := whyOf(all, of), whyOf(some, of)
			if a.Reason != want.reason || s.Reason != a.Reason || s.NextSeq != a.NextSeq || s.Position != a.Position {
				t.Errorf("an operator is told %+v, a viewer %+v", a, s)
			}
			if of == "open" {
				if s.EventID != ids[of] || s.ErrorCode != "secretcode" || s.Attempt != 1 || some.Sentence != all.Sentence {
					t.Errorf("of what it may see: %+v: %s", s, some.Sentence)
				}
				return
			}
			if s.EventID != "" || s.ErrorCode != "" || s.Attempt != 0 || s.DeadLetter != nil || some.Sentence == all.Sentence {
				t.Errorf("of what it may not see: %+v: %s", s, some.Sentence)
			}
			for _, p := range must(v.InspectRecord(t.Context(), key(of), 10))(t).Positions {
				if p.ErrorCode != "" || p.Attempt != 0 {
					t.Errorf("of what it may not see: %+v", p)
				}
			}
			for _, r := range must(v.Behind(t.Context(), of, keyline.BehindFilter{}))(t).Records {
				if r.EventID != "" || r.ErrorCode != "" || r.Attempt != 0 || r.DeadLetter != nil {
					t.Errorf("of what it may not see: %+v", r)
				}
			}
		})
	}
}
