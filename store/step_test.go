package store

import (
	"context"
	"testing"
	"time"

	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/testdb"
)

func TestWorkThatWasDueBeforeTheClockSteppedBackDoesNotWait(t *testing.T) {
	r := newRig(t)
	consumer := r.register(definition("c"))
	r.sweepAll()
	immediate, backoff, claimed := r.append("immediate"), r.append("backoff"), r.append("claimed")
	c := r.claimOne(claimed)
	r.exec("update keyline.mailboxes set due_at = clock_timestamp() + interval '50 minutes'")
	r.exec(`insert into keyline.checkpoints (record_id, consumer_id, seq, state, attempt, next_attempt_at)
		select record_id, $2, 0, 'backoff', 1, due_at from keyline.mailboxes where record_id = $1`, backoff, consumer)

	r.sweepAll() // no step
	if r.mailbox(immediate) != "later" {
		t.Fatalf("without a step: %q", r.mailbox(immediate)) // else the rest says nothing
	}
	// What the last reading says is an hour ahead of what the next one will find.
	r.clock.read(r.clock.Now().Add(time.Hour), r.clock.Mono(), r.clock.Mono())
	if err := r.Renew(t.Context(), r.me, nil); err != nil {
		t.Fatal(err)
	}
	r.sweepAll()
	if r.mailbox(immediate) != "due" || r.mailbox(backoff) != "later" {
		t.Errorf("immediate %q, backoff %q", r.mailbox(immediate), r.mailbox(backoff))
	}
	if r.mailbox(claimed) != "claimed" || get[int64](r, "select token from keyline.mailboxes where record_id = $1", claimed) != c.Token {
		t.Error("a claim was touched")
	}
	r.exec("update keyline.mailboxes set due_at = clock_timestamp() + interval '50 minutes' where record_id = $1", immediate)
	r.sweepAll()
	if r.mailbox(immediate) != "later" {
		t.Error("it goes on for ever")
	}
}

// Whoever comes after a step looks for its traces. A pause that leaves none in the database, such as an open breaker's, is none.
func TestAtItsStartAWorkerTakesNobodysPauseForAStepOfTheClock(t *testing.T) {
	r := newRig(t)
	r.register(definition("c"))
	r.sweepAll()
	paused, ahead := r.append("paused"), r.append("ahead")
	stage := func() {
		r.exec("update keyline.mailboxes set due_at = clock_timestamp() + interval '50 minutes'")
		r.unlooked.Store(true)
		r.sweepAll()
	}
	stage()
	if r.mailbox(paused) != "later" || r.mailbox(ahead) != "later" {
		t.Errorf("no step: %q and %q", r.mailbox(paused), r.mailbox(ahead))
	}
	r.exec("alter table keyline.events disable trigger user")
	r.exec("update keyline.events set created_at = created_at + interval '1 hour' where record_id = $1", ahead)
	stage()
	if r.mailbox(paused) != "later" || r.mailbox(ahead) != "due" {
		t.Errorf("an event from a time to come: %q and %q", r.mailbox(paused), r.mailbox(ahead))
	}
	r.exec("update keyline.workers set beat_at = clock_timestamp() + interval '1 hour'")
	stage()
	if r.mailbox(paused) != "due" {
		t.Errorf("a beat from a time to come: %q", r.mailbox(paused))
	}
}

// The look at everything that a step asks for, which is also made at a start, is made in
// pieces, with pauses: whatever else a worker has to do comes in between.
func TestTheLookAtAllThatIsNotDueIsMadeInPieces(t *testing.T) {
	fake := clock.NewFake(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	r := newRig(t, func(c *Config) { c.Clock = fake })
	r.register(definition("c"))
	r.sweepAll()
	const n = 2*sweepChunk + 1
	if err := r.BareSeed(t.Context(), "r", n, 1); err != nil {
		t.Fatal(err)
	}
	r.exec("update keyline.mailboxes set due_at = clock_timestamp() + interval '50 minutes'")
	r.clock.setBack.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	defer func() { cancel(); <-ended }()
	// It asks this when it has looked, and then sets its timer: only from there on are the clock's timers no connection's.
	looked := make(chan struct{})
	told := func() bool {
		select {
		case looked <- struct{}{}:
		case <-ctx.Done():
		}
		return true
	}
	go func() { r.KeepSweeping(ctx, told); close(ended) }()
	r.AskSweep() // which is no reason to walk more slowly
	for _, due := range []int64{sweepChunk, 2 * sweepChunk, n} {
		made := func() int64 {
			return get[int64](r, "select count(*) from keyline.mailboxes where due_at <= clock_timestamp()")
		}
		testdb.Eventually(t, func() bool { return made() >= due }, "the next piece")
		<-looked
		if err := fake.BlockUntil(ctx, 1); err != nil {
			t.Fatal(err)
		}
		if got := made(); got != due {
			t.Fatalf("%d are due, want %d", got, due)
		}
		fake.Advance(walkPause)
	}
}
