package main

import (
	"fmt"
	"syscall"
	"time"

	"github.com/keylinehq/keyline"
)

var loops = []scenario{
	{"36a", "each loop of a worker fails once at its start", loopsFail},
	{"36b", "nothing can be listened to at the start", deafStart},
}

// loopsFail cuts the connection on which a loop asks its first question; where that has been asked before, to warm its session, on
// the second connection. Loops
// that ask nothing (alarms, the pumps of wakes and of failed actors) cannot fail so; that
// any loop is run again alone is in supervisor: TestEveryLoopIsRetriedAlone.
func loopsFail(t *stage) {
	t.open()
	for i, fault := range []struct {
		loop, marker string
		warm         bool
	}{
		{"claims", "keyline.claim(", true}, {"claims", "How many microseconds until", true}, {"loads", "m.crashes, m.unclean", true},
		{"news", "Heads of resident records", false}, {"lease", "set beat = w.beat + 1", false}, {"observer", "select id, beat, lease", false},
		{"orphans", "hand_back_orphans(", false},
	} {
		p, url := t.newProxy()
		cut := p.cutBefore
		if fault.warm {
			cut = p.cutTwiceBefore
		}
		trap := cut(fault.marker)
		name, gate := fmt.Sprintf("w%d", i), fmt.Sprintf("g%d", i)
		first := func() { t.append("r"+name, do{"gate": gate, "only": "a"}) } // resident for as long as it takes
		if fault.loop == "loads" {
			first() // a record that a worker is called for is read with its claim
		}
		w := t.start(spec{Name: name, URL: url, ListenURL: t.url()})
		if fault.loop != "loads" {
			first()
		}
		if !trap.holds(t, 30*time.Second) {
			t.fatal("%s: it asks nothing like %q", fault.loop, fault.marker)
		}
		var f figures
		loop := func() (failures int, ok bool) {
			f = w.figures()
			for _, l := range f.Health.Loops {
				if l.Name == fault.loop {
					return l.Failures, l.OK
				}
			}
			t.fatal("there is no loop %s", fault.loop)
			return 0, false
		}
		t.eventually(fault.loop+" shows that it has failed", 10*time.Second, func() bool { n, _ := loop(); return n > 0 })
		t.eventually(fault.loop+" works again", 20*time.Second, func() bool { _, ok := loop(); return ok })
		for _, l := range f.Health.Loops {
			if l.Name != fault.loop && l.Failures > 0 {
				t.fail("%s has failed with %s: %s", l.Name, fault.loop, l.Error)
			}
		}
		if f.Health.Fenced > 0 {
			t.fail("the worker was fenced for %s", fault.loop)
		}
		t.gate(gate)
		t.append("r"+name, nil)
		t.awaitDone("r"+name, 6, 20*time.Second)
		w.signal(syscall.SIGTERM)
		if !w.ended(40 * time.Second) {
			t.fatal("a worker does not stop")
		}
	}
	t.check(allow{})
}

// deafStart: without its listening session a worker polls, says so, and hears once it can: then
// it is faster than its poll.
func deafStart(t *stage) {
	t.open()
	p, url := t.newProxy()
	p.refuseNew(true)
	const poll = 4 * time.Second
	w := t.start(spec{Name: "w1", ListenURL: url, Config: keyline.Config{PollInterval: poll, Lease: time.Minute}}) // once a lease it looks as well
	listening := func() string {
		for _, c := range w.figures().Readiness.Checks {
			if c.Name == "listening" {
				return c.Status
			}
		}
		return ""
	}
	t.eventually("it says that it polls", 20*time.Second, func() bool { return listening() == "warn" })
	for i := range 2 { // its first look at the start is not the poll
		t.append("r", nil)
		t.awaitDone("r", 3*(i+1), poll+6*time.Second)
	}
	p.refuseNew(false)
	t.eventually("it hears", 30*time.Second, func() bool { return listening() == "ok" })
	for i := range 3 { // the poll cannot have been about to come each time
		t.append("r", nil)
		t.awaitDone("r", 3*(i+3), poll/2)
	}
	t.check(allow{})
}
