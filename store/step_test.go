package store

import (
	"testing"
	"time"
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
