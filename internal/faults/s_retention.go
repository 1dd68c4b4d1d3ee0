package main

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/keylinehq/keyline"
)

var retention = []scenario{
	{"15", "a consumer wants one event in a million, others are pruned", rareEvent},
	{"17", "pruning beside live consumers that need what is old", pruneBesideLive},
}

// soon is an age that everything reaches at once: retention lets go what is done with.
const soon = time.Microsecond

// rareEvent: what does not concern a consumer costs it no delivery, and what is
// gone does not hold it up.
func rareEvent(t *stage) {
	t.open()
	define := map[string]definition{"rare": {Types: []string{"rare.*"}}, "late": {Types: []string{"rare.*"}, Start: keyline.Beginning()}}
	t.start(spec{Name: "w1", Consumers: []string{"rare"}, Define: define})
	t.appendType("first", "rare.one", nil)
	t.awaitDone("first", 1, 20*time.Second)
	const records, each = 10, 100_000
	began := t.house.clock.Mono()
	s := t.store()
	for i := range records {
		t.must(s.BareSeed(t.ctx, fmt.Sprintf("big%d-", i), 1, each), "append a hundred thousand")
	}
	t.found["seed_s"] = int((t.house.clock.Mono() - began).Seconds())
	began = t.house.clock.Mono()
	t.appendType("big7-0", "rare.two", nil)
	t.awaitDone("big7-0", 1, 2*time.Minute)
	t.found["reached_s"] = int((t.house.clock.Mono() - began).Seconds())
	settled := func() bool { return t.try("select count(*) from keyline.mailboxes") == 0 }
	t.eventually("everything settles", 2*time.Minute, settled)
	if n := t.number("select count(*) from keyline.records where cursor <> head"); n != 0 {
		t.fail("%d records are not passed", n)
	}
	// A consumer from the beginning comes when what was before is gone, and while more goes.
	t.must(t.pruneAll(), "prune")
	if n := t.number("select count(*) from keyline.events"); n != 0 {
		t.fail("%d events that nobody needs are left", n)
	}
	for i := range records {
		r := fmt.Sprintf("big%d-0", i)
		t.appendBulk([]string{r}, "other", 1000)
		t.appendType(r, "rare.three", nil)
	}
	t.awaitDone("big%", 1+records, time.Minute)
	t.start(spec{Name: "w2", Consumers: []string{"late"}, Define: define})
	t.awaitDone("big%", 1+2*records, time.Minute)
	t.must(t.pruneAll(), "prune")
	t.appendType("big7-0", "other", nil)
	t.appendType("big7-0", "rare.four", nil)
	t.awaitDone("big7-0", 1+2+2, 20*time.Second)
	t.check(allow{pruned: true})
}

func (t *stage) pruneAll() error {
	r, err := t.operator().Prune(t.ctx, "staged", keyline.PruneOptions{OlderThan: soon})
	t.found["pruned"] = r.Events
	return err
}

// pruneBesideLive prunes without a pause while a consumer is paused, one is
// parked, one has no worker, and the others have traffic. What is deleted is deleted
// for the recorder too, so that losses are counted here, by the streams' lengths.
func pruneBesideLive(t *stage) {
	t.open()
	t.start(spec{Name: "w1", Consumers: []string{"a", "b", "tx", "parks"}, Attempts: 1, Define: map[string]definition{"parks": {Park: true}}})
	w2 := t.start(spec{Name: "w2", Consumers: []string{"away"}})
	const records = 10
	names := make([]string, records)
	for i := range names {
		names[i] = fmt.Sprintf("load%d", i)
	}
	t.appendBulk(names, "fault.staged", 10)
	t.awaitDone("load%", 5*10*records, time.Minute)
	o := t.operator()
	t.must(o.PauseConsumer(t.ctx, "b", ""), "pause")
	w2.signal(syscall.SIGTERM)
	if !w2.ended(40 * time.Second) {
		t.fatal("a worker does not stop")
	}
	t.append("load0", do{"do": "permanent", "only": "parks"})
	t.appendBulk(names, "fault.staged", 5)
	stop := t.load(records)

	pruning, end := context.WithCancel(t.ctx)
	defer end()
	var deleted int64
	held := map[string]bool{}
	done := make(chan error, 1)
	go func() {
		for pruning.Err() == nil {
			r, err := o.Prune(pruning, "staged", keyline.PruneOptions{OlderThan: soon})
			if err != nil && pruning.Err() == nil {
				done <- err
				return
			}
			deleted += r.Events
			for _, h := range r.HeldBack {
				held[h.Reason+" "+h.Consumer+" "+h.Status] = true
			}
		}
		done <- nil
	}()
	t.pause(5 * time.Second)
	t.must(o.ResumeConsumer(t.ctx, "b", ""), "resume")
	t.start(spec{Name: "w2", Consumers: []string{"away"}})
	letters, err := o.DeadLetters(t.ctx, keyline.DeadLetterFilter{})
	t.must(err, "list dead letters")
	if len(letters) != 1 {
		t.fatal("%d dead letters, want 1", len(letters))
	}
	_, err = o.ResolveDeadLetter(t.ctx, letters[0].ID, "staged")
	t.must(err, "resolve")
	t.pause(2 * time.Second)
	t.found["appended_under_load"] = stop()
	t.eventually("everything settles", time.Minute, func() bool { return t.try("select count(*) from keyline.mailboxes") == 0 })
	end()
	t.must(<-done, "prune")
	t.found["pruned"] = deleted
	if deleted < 10*records {
		t.fail("%d events were deleted, at least %d were done with", deleted, 10*records)
	}
	for _, reason := range []string{"consumer b paused", "consumer away active", "consumer parks active", "dead_letter parks open"} {
		if !held[reason] {
			t.fail("no prune said that it kept events for %q", reason)
		}
	}
	var said []string
	for reason := range held {
		said = append(said, reason)
	}
	slices.Sort(said)
	t.found["held_back"] = said
	if n := t.number(`select coalesce(sum(r.head - (select count(distinct l.seq) from crm.delivered_log l
		where l.mark = 'done' and l.consumer = c.name and l.record_key = r.record_key)), 0)
		from keyline.records r cross join keyline.consumers c`); n != 1 {
		t.fail("%d deliveries did not succeed, want 1, the dead letter's", n)
	}
	t.must(t.pruneAll(), "prune")
	if n := t.number("select count(*) from keyline.events"); n != 0 {
		t.fail("%d events that nobody needs are left", n)
	}
	t.append("load0", nil)
	t.check(allow{pruned: true})
}
