package main

import (
	"fmt"
	"syscall"
	"time"

	"github.com/keylinehq/keyline"
)

var clocks = []scenario{
	{"43", "the database clock steps forward and back", clockSteps},
	{"7", "many appends under one timestamp", frozenTimestamp},
	{"32b", "a consumer is paused for a week, another disabled", weekOff},
}

// clockSteps runs the server under libfaketime and moves its clock.
func clockSteps(t *stage) {
	set := t.openClocked()
	w1 := t.start(spec{Name: "w1", Consumers: []string{"a", "b"}, Delay: 4 * time.Second})
	w2 := t.start(spec{Name: "w2", Consumers: []string{"a", "b"}, Delay: 4 * time.Second})
	check := func(n int) {
		r := fmt.Sprintf("r%d", n)
		t.append(r, do{"first": 1, "only": "a"})
		t.append(r, nil)
		t.awaitDone(r, 4, 25*time.Second)
		t.append("again", nil)
		t.awaitDone("again", 2*(n+1), 15*time.Second)
	}
	check(0)
	t.append("slow", do{"ms": 3000})
	t.append("backoff1", do{"first": 1, "only": "a"}) // in backoff during the step
	t.running("backoff1", 1)
	t.pause(500 * time.Millisecond)
	before := t.number("select extract(epoch from clock_timestamp())::bigint")
	set("+3600")
	t.eventually("the clock steps", 10*time.Second, func() bool {
		return t.number("select extract(epoch from clock_timestamp())::bigint") > before+3000
	})
	t.awaitDone("backoff1", 2, 20*time.Second)
	check(1)
	t.append("slow", do{"ms": 3000})
	t.append("backoff2", do{"first": 1, "only": "a"})
	t.running("backoff2", 1)
	t.pause(500 * time.Millisecond)
	set("+0")
	t.append("backoff3", nil)
	t.awaitDone("backoff3", 2, 15*time.Second)
	// A backoff that was set by the later clock ends later by the step; those from the workers' next reading on do not.
	t.pause(2 * time.Second)
	check(2)
	// Work that was unclaimed during a step back: by workers that see the step…
	set("+7200")
	forward := func(seconds int) {
		t.eventually("the clock steps", 10*time.Second, func() bool {
			return t.number("select extract(epoch from clock_timestamp())::bigint") > before+seconds
		})
	}
	forward(3000)
	t.awaitDone("backoff2", 2, 30*time.Second)
	check(3)
	for _, w := range []*worker{w1, w2} {
		w.signal(syscall.SIGSTOP)
	}
	t.append("unclaimed1", nil)
	set("+3600")
	t.pause(100 * time.Millisecond)
	for _, w := range []*worker{w1, w2} {
		w.signal(syscall.SIGCONT)
	}
	t.awaitDone("unclaimed1", 2, 15*time.Second)
	if n := t.number("select count(*) from keyline.workers where status <> 'live'"); n != 0 {
		t.fail("%d workers lost their leases", n)
	}
	// … and by one that comes later.
	w1.kill()
	w2.kill()
	t.append("unclaimed2", nil)
	set("+0")
	t.start(spec{Name: "w3", Consumers: []string{"a", "b"}, Delay: 4 * time.Second})
	t.awaitDone("unclaimed2", 2, 15*time.Second)
	t.check(allow{})
}

// frozenTimestamp stops the database's clock: hundreds of events have one time,
// and what resumes in the middle of them, or starts at that time, misses none. Order
// and place are by seq; a time is no place.
func frozenTimestamp(t *stage) {
	set := t.openClocked()
	s := spec{Name: "w1", Consumers: []string{"a", "few"}, Define: map[string]definition{"few": {Types: []string{"wanted"}}}}
	w := t.start(s)
	const records, each = 5, 60
	t.append("before", nil)
	t.awaitDone("before", 1, 20*time.Second)
	now := func() (at time.Time) {
		t.must(t.pool.QueryRow(t.ctx, "select clock_timestamp()").Scan(&at), "read the clock")
		return at
	}
	set(now().Add(time.Second).Local().Format("2006-01-02 15:04:05"))
	t.eventually("the clock stands still", 10*time.Second, func() bool { return now().Equal(now()) })
	tie := now()
	for seq := range each {
		for r := range records {
			kind, d := "other", do{}
			if seq%3 == 0 {
				kind = "wanted"
			}
			if seq == 30 {
				d = do{"gate": "g", "only": "few"}
			}
			t.appendType(fmt.Sprintf("r%d", r), kind, d)
		}
	}
	for r := range records {
		t.eventually("it is in the middle of the tie", 60*time.Second, func() bool {
			return t.number(begun+" and consumer = 'few'", fmt.Sprintf("r%d", r), 31) == 1
		})
	}
	t.eventually("the other is done", 60*time.Second, func() bool {
		return t.number("select count(*) from crm.delivered_log where mark = 'done' and consumer = 'a' and record_key like 'r%'") == records*each
	})
	t.eventually("that is written down", 20*time.Second, func() bool {
		return t.number("select count(*) from keyline.mailboxes where cursor = $1", each) == records
	})
	w.kill()
	s.Name, s.Consumers = "w2", append(s.Consumers, "since", "after")
	s.Define["since"] = definition{Types: []string{"wanted"}, Start: keyline.At(tie)}
	s.Define["after"] = definition{Types: []string{"wanted"}, Start: keyline.At(tie.Add(time.Microsecond))}
	t.start(s)
	t.gate("g")
	t.awaitDone("r%", records*(each+2*each/3), 60*time.Second)
	if n := t.number("select count(distinct created_at) from keyline.events e join keyline.records r on r.id = e.record_id where r.record_key like 'r%'"); n != 1 {
		t.fail("the events have %d times: nothing was tested", n)
	}
	if n := t.number("select count(*) from crm.delivered_log where consumer = 'after'"); n != 0 {
		t.fail("%d events were delivered that are older than their consumer's start", n)
	}
	t.appendType("r0", "wanted", nil) // time stands still, work does not
	t.awaitDone("r0", each+2*each/3+3, 30*time.Second)
	set("+0")
	t.check(allow{})
}

// weekOff: paused is a place that is kept, disabled is none. The week passes on
// the database's clock, with another consumer at work, a prune by age, and a retry that is overdue at its end.
func weekOff(t *stage) {
	set := t.openClocked()
	t.start(spec{Name: "w1", Consumers: []string{"a", "paused", "disabled"}, Delay: time.Hour, Attempts: 3})
	o := t.operator()
	t.appendN("r", 2)
	t.append("failing", do{"first": 1, "only": "paused"})
	t.append("failing", nil)
	t.awaitDone("r", 6, 20*time.Second)
	t.eventually("one is in backoff", 20*time.Second, func() bool { return len(t.dueTimes()) == 1 })
	t.must(o.PauseConsumer(t.ctx, "paused", ""), "pause")
	t.must(o.DisableConsumer(t.ctx, "disabled", "staged"), "disable")
	t.appendN("r", 3)
	t.awaitDone("r", 9, 20*time.Second)
	before := t.number("select extract(epoch from clock_timestamp())::bigint")
	set("+604800")
	t.eventually("a week passes", 10*time.Second, func() bool {
		return t.number("select extract(epoch from clock_timestamp())::bigint") > before+604000
	})
	t.appendN("r", 3)
	t.awaitDone("r", 12, 30*time.Second)
	r, err := o.Prune(t.ctx, "staged", keyline.PruneOptions{OlderThan: 24 * time.Hour})
	t.must(err, "prune")
	if r.Events != 2 { // of record r, before the pause
		t.fail("%d events were pruned, 2 were done with", r.Events)
	}
	if n := t.number("select count(*) from crm.delivered_log where consumer in ('paused', 'disabled') and record_key = 'r' and seq > 2"); n != 0 {
		t.fail("%d deliveries began for consumers that are off", n)
	}
	t.must(o.ResumeConsumer(t.ctx, "paused", ""), "resume")
	t.eventually("the place of the disabled one is swept away", 20*time.Second, func() bool { return o.ResumeConsumer(t.ctx, "disabled", "") == nil })
	t.appendN("r", 1)
	// a: 9 events; paused: all of them; disabled: the first two and the last.
	t.awaitDone("r", 9+9+3, 30*time.Second)
	t.awaitDone("failing", 2+2+2, 30*time.Second)
	for consumer, want := range map[string]string{"a": "1 2 3 4 5 6 7 8 9", "paused": "1 2 3 4 5 6 7 8 9", "disabled": "1 2 9"} {
		if got := t.order("r", consumer); got != want {
			t.fail("%s got %s, want %s", consumer, got, want)
		}
	}
	if n := t.number("select count(*) from keyline.workers where status <> 'live'"); n != 0 {
		t.fail("%d workers lost their leases to a step of the clock", n)
	}
	t.check(allow{ignored: map[string]int64{"disabled": 6}, pruned: true})
}
