package store

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/keylinehq/keyline/internal/core"
)

func TestACursorNeverGoesBack(t *testing.T) {
	r := newRig(t)
	for name, f := range map[string]core.Flush{
		"keep": {}, "clear": {Clear: true}, "hand-back": {Then: core.HandBack}, "release": {Then: core.Release},
	} {
		id := r.append(name, "t", "t", "t")
		c := r.claimOne(id)
		r.flush1(core.Flush{Record: id, Token: c.Token, Head: 3, Cursor: 2})
		f.Record, f.Token, f.Head, f.Cursor = id, c.Token, 3, 1
		if res := r.flush1(f); res.Status == core.FlushFenced {
			t.Fatalf("%s: %+v", name, res)
		}
		if b := r.box(id); b.cursor != 2 {
			t.Errorf("%s: the cursor is at %d", name, b.cursor)
		}
	}
}

func TestSuspicionEndsWithTheFlushThatSaysSoHoweverTheClaimEnds(t *testing.T) {
	r := newRig(t)
	for name, then := range map[string]core.Disposition{"keep": core.Keep, "hand-back": core.HandBack, "release": core.Release} {
		for _, clear := range []bool{true, false} {
			id := r.append(name + map[bool]string{true: " cleared"}[clear])
			r.exec("update keyline.mailboxes set crashes = 2, unclean = true where record_id = $1", id)
			c := r.claimOne(id)
			r.flush1(core.Flush{Record: id, Token: c.Token, Head: 1, Cursor: 1, Clear: clear, Then: then})
			if b := r.box(id); (b.crashes == 0) != clear || b.unclean == clear {
				t.Errorf("%s, clear %v: %+v", name, clear, b)
			}
		}
	}
}

// The claim of one record gives no right to another one's rows.
func TestAFlushWritesOnlyForTheRecordsThatItIsAbout(t *testing.T) {
	r := newRig(t)
	c := r.register(definition("c"))
	mine, theirs := r.claimOne(r.append("mine", "t", "t")), r.append("theirs", "t", "t")
	cmd, err := r.Command(t.Context(), core.Command{Record: theirs, Kind: core.CommandRetry, Actor: "op"}, "theirs")
	if err != nil {
		t.Fatal(err)
	}
	r.exec(`insert into keyline.dead_letters (record_id, seq, consumer_id, event_id, attempt, reason, error_code, first_failed_at, failed_at)
		values ($1, 1, $2, gen_random_uuid(), 4, 'exhausted', 'boom', now(), now())`, theirs, c)
	dead := get[int64](r, "select id from keyline.dead_letters")
	at := r.clock.Now()
	f := core.Flush{Record: mine.Record, Token: mine.Token, Head: 2,
		DeadLetters: []core.DeadLetter{{Record: theirs, Seq: 2, Consumer: c, Attempt: 1, EventID: uuid.New(), Reason: core.DeadPermanent, Code: "c", FirstFailedAt: at, FailedAt: at}},
		DeadUpdates: []core.DeadUpdate{
			{DeadRetry: core.DeadRetry{ID: dead, Record: mine.Record, Consumer: c, Seq: 1, Attempt: 9}, Status: core.DeadResolved, At: at},
			{DeadRetry: core.DeadRetry{ID: dead, Record: theirs, Consumer: c, Seq: 1, Attempt: 9}, Status: core.DeadResolved, At: at},
			{DeadRetry: core.DeadRetry{Record: theirs, Consumer: c, Seq: 1, Attempt: 9}, Status: core.DeadResolved, At: at},
		},
		Failures: []core.Failure{{Record: theirs, Seq: 1, Consumer: c, Attempt: 1, At: at, Code: "c"}},
		Skips:    []core.Skip{{Record: theirs, Seq: 1, Consumer: c, Attempt: 1, Code: "handler", At: at}},
		Applied:  []core.AppliedCommand{{ID: cmd, Done: true}}, // said to be of the flush's own record
	}
	if res := r.flush1(f); res.Status != core.FlushKept {
		t.Fatalf("%+v", res)
	}
	for _, table := range []string{"failures", "skips", "checkpoints"} {
		if n := r.count(table, ""); n != 0 {
			t.Errorf("%d %s", n, table)
		}
	}
	if n := r.count("dead_letters", "status = 'open' and attempt = 4"); n != 1 || r.count("dead_letters", "") != 1 {
		t.Errorf("another record's dead letters were touched: %d as it was, of %d", n, r.count("dead_letters", ""))
	}
	if n := r.count("commands", "applied_at is null"); n != 1 {
		t.Error("another record's command counts as applied")
	}
}

func TestACommandsFirstOutcomeStays(t *testing.T) {
	r := newRig(t)
	c := r.claimOne(r.append("r"))
	cmd, err := r.Command(t.Context(), core.Command{Record: c.Record, Kind: core.CommandRetry, Actor: "op"}, "r")
	if err != nil {
		t.Fatal(err)
	}
	for _, applied := range []core.AppliedCommand{{ID: cmd, Done: true, Detail: "first"}, {ID: cmd, Detail: "second"}} {
		r.flush1(core.Flush{Record: c.Record, Token: c.Token, Head: 1, Applied: []core.AppliedCommand{applied}})
		if out, err := r.operate().Await(t.Context(), cmd); err != nil || !out.Done || out.Detail != "first" {
			t.Errorf("%+v, %v", out, err)
		}
	}
}

func (r *rig) dead() string {
	r.Helper()
	return get[string](r, `select concat_ws(' ', status, attempt, reason, error_code, coalesce(resolved_by, '-'), coalesce(resolution, '-'),
		started, due_at is null, resolved_at is null) from keyline.dead_letters`)
}

// There is one dead letter for a delivery: one that dies again is open again.
func TestADeliveryThatDiesAgainOpensItsDeadLetterAgain(t *testing.T) {
	r := newRig(t)
	c := r.register(definition("c"))
	l := r.load(r.claimOne(r.append("r")))
	at := r.clock.Now()
	dies := func(attempt int, reason core.DeadReason, code string) {
		r.flush1(core.Flush{Record: l.Record, Token: l.Token, Head: 1, DeadLetters: []core.DeadLetter{{Record: l.Record, Seq: 1, Consumer: c, Attempt: attempt,
			EventID: l.Events[0].ID, Reason: reason, Code: code, FirstFailedAt: at, FailedAt: at}}})
	}
	closes := func(u core.DeadUpdate) {
		u.Record, u.Consumer, u.Seq, u.At = l.Record, c, 1, at
		r.flush1(core.Flush{Record: l.Record, Token: l.Token, Head: 1, DeadUpdates: []core.DeadUpdate{u}})
	}
	is := func(when, want string) {
		t.Helper()
		if got := r.dead(); got != want {
			t.Errorf("%s: %s, want %s", when, got, want)
		}
	}
	dies(4, core.DeadExhausted, "boom")
	is("dead", "open 4 exhausted boom - - f t t")
	closes(core.DeadUpdate{Status: core.DeadResolved, Actor: "op", Note: "gone"})
	is("resolved", "resolved 4 exhausted boom op gone f t f")
	// Closed is closed: what closes the head delivery's dead letter finds none that is open.
	closes(core.DeadUpdate{DeadRetry: core.DeadRetry{Attempt: 7}, Status: core.DeadDelivered, Actor: "x", Note: "y"})
	is("closed twice", "resolved 4 exhausted boom op gone f t f")
	dies(5, core.DeadPermanent, "bang")
	is("dead again", "open 5 permanent bang - - f t t")

	id := get[int64](r, "select id from keyline.dead_letters")
	closes(core.DeadUpdate{DeadRetry: core.DeadRetry{ID: id, Attempt: 6, Started: true, DueAt: at}, Status: core.DeadWaiting})
	is("being retried", "retrying 6 permanent bang - - t f t")
	dies(7, core.DeadCrashes, "crash")
	is("dead a third time", "open 7 crash_budget crash - - f t t")
}

// What has been written ahead counts as a run, and against no budget; what has
// not is none of recovery's business.
func TestRecoveryTouchesOnlyWhatWasWrittenAhead(t *testing.T) {
	r := newRig(t)
	a, b, d := r.register(definition("a")), r.register(definition("b")), r.register(definition("d"))
	id, victim := r.append("r"), r.join("victim")
	if got := r.claims(victim, 1); len(got) != 1 {
		t.Fatal(got)
	}
	// The budget of a's began with this very attempt.
	r.exec(`insert into keyline.checkpoints (record_id, consumer_id, seq, state, attempt, granted, next_attempt_at) values
		($1, $2, 0, 'started', 3, 3, null), ($1, $3, 0, 'parked', 4, 1, null), ($1, $4, 0, 'backoff', 2, 1, now() + interval '1 hour')`, id, a, b, d)
	if err := r.Leave(t.Context(), victim); err != nil {
		t.Fatal(err)
	}
	if n, err := r.Recover(t.Context()); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	for consumer, want := range map[int32]core.Checkpoint{
		a: {State: core.Ready, Attempt: 3, Granted: 3}, b: {State: core.Parked, Attempt: 4, Granted: 1}, d: {State: core.Backoff, Attempt: 2, Granted: 1},
	} {
		if got := r.row(id, consumer); got.State != want.State || got.Attempt != want.Attempt || got.Granted != want.Granted {
			t.Errorf("consumer %d: %+v", consumer, got)
		}
	}
}

// sleeper is somebody who sleeps, and hears every wake until it is woken.
func (r *rig) sleeper() (hears func(want string), wake func()) {
	r.Helper()
	conn := r.db.Connect()
	for _, sql := range []string{"listen " + r.Channel(), "select pg_advisory_lock(" + r.Schema() + ".arm_key())"} {
		if _, err := conn.Exec(r.Context(), sql); err != nil {
			r.Fatal(err)
		}
	}
	return func(want string) {
		r.Helper()
		ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
		defer cancel()
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			r.Fatal(err)
		}
		if n.Payload != want {
			r.Errorf("woken by %q, want %q", n.Payload, want)
		}
	}, func() { _ = conn.Close(context.WithoutCancel(r.Context())) }
}

// Whatever makes work claimable wakes; and only that.
func TestRecoveryOrphansCommandsAndSweepsWake(t *testing.T) {
	r := newRig(t)
	r.register(definition("c"))
	r.sweepAll()
	hears, _ := r.sleeper()
	id := r.append("r")
	hears(itoa(id))
	r.claimOne(id)
	r.age()
	if n, err := r.HandBackOrphans(t.Context(), r.me, []core.Held{{Record: id, Token: r.box(id).token}}); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	if n, err := r.Recover(t.Context()); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	if n, err := r.HandBackOrphans(t.Context(), r.me, nil); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	hears("more") // and nothing before it
	victim := r.join("victim")
	r.claims(victim, 1)
	r.lose(victim)
	if n, err := r.Recover(t.Context()); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	hears("more")
	if _, err := r.Command(t.Context(), core.Command{Record: id, Kind: core.CommandRetry, Actor: "op"}, "r"); err != nil {
		t.Fatal(err)
	}
	hears(itoa(id))
	c := r.claimOne(id)
	r.flush1(core.Flush{Record: id, Token: c.Token, Head: 1, Then: core.Release, DueAt: r.clock.Now().Add(time.Hour)}) // not now
	r.setStatus("c", core.Paused)
	hears("more") // the change itself: there is something to sweep
	r.sweepAll()
	hears("more")
}
