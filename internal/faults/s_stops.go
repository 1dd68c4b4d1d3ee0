package main

import (
	"fmt"
	osexec "os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/keylinehq/keyline"
)

var stops = []scenario{
	{"35a", "SIGTERM twice in mid-handler", sigterm},
	{"35b", "SIGTERM with a handler that does not heed its context", sigtermDeaf},
	{"23", "the same host and pid after a restart", samePID},
	{"26", "two binaries with different consumers", twoBinaries},
}

func sigterm(t *stage) {
	t.open()
	w := t.start(spec{Name: "w1", Config: keyline.Config{ShutdownGrace: 10 * time.Second}})
	t.append("r", do{"ms": 2000})
	t.append("r", nil)
	t.append("failing", do{"do": "fail", "first": 0, "only": "nobody"})
	t.eventually("all of its handlers run", 20*time.Second, func() bool { return t.number(begun, "r", 1) == 3 })
	w.signal(syscall.SIGTERM)
	t.pause(300 * time.Millisecond)
	w.signal(syscall.SIGTERM)
	if !w.ended(20 * time.Second) {
		t.fatal("it does not end")
	}
	if n := t.done("r"); n < 3 {
		t.fail("%d results of handlers that had begun, want 3", n)
	}
	if n := t.number("select count(*) from keyline.workers where status = 'left'"); n != 1 {
		t.fail("it has not left")
	}
	t.start(spec{Name: "w2"})
	t.check(allow{})
	if n := t.number("select count(*) from crm.delivered_log where attempt > 1") + t.number("select count(*) from keyline.failures"); n != 0 {
		t.fail("%d attempts were burned", n)
	}
}

func sigtermDeaf(t *stage) {
	t.open()
	w := t.start(spec{Name: "w1", Consumers: []string{"a", "b", "tx"}, Config: keyline.Config{ShutdownGrace: time.Second, Lease: 8 * time.Second}, Stay: true})
	t.append("r", do{"gate": "g", "deaf": true, "only": "a"})
	t.append("q", do{"gate": "g", "only": "b"})
	t.append("p", do{"gate": "g", "only": "tx"})
	for _, r := range []string{"r", "q", "p"} {
		t.running(r, 1)
	}
	t.start(spec{Name: "w2", Config: keyline.Config{Lease: 8 * time.Second}})
	w.signal(syscall.SIGTERM)
	if !w.says("stopped running=1", 20*time.Second) {
		t.fatal("it does not stop, or says nothing of the handler that runs")
	}
	// What heeded its context is elsewhere at once; what did not keeps its claim.
	t.eventually("the others are taken", 10*time.Second, func() bool {
		return t.number("select count(*) from crm.delivered_log where mark = 'begin' and record_key in ('p', 'q') and worker like 'w2%' and consumer in ('b', 'tx')") >= 2
	})
	t.pause(5 * time.Second) // others have looked for abandoned claims by then
	if n := t.number("select count(*) from crm.delivered_log where mark = 'begin' and record_key = 'r' and consumer = 'a'"); n != 1 {
		t.fail("%d runs beside the handler that still runs, within its lease", n-1)
	}
	t.gate("g")
	t.check(allow{duplicates: 3, overlaps: true})
	if n := t.number("select count(*) from keyline.failures"); n != 0 {
		t.fail("%d attempts were burned", n)
	}
	t.noCrashCharged()
}

func samePID(t *stage) {
	t.open()
	if _, err := osexec.LookPath("unshare"); err != nil {
		t.skip("unshare (util-linux) is not there to repeat a pid")
	}
	if osexec.Command("unshare", "--pid", "--fork", "true").Run() != nil {
		t.skip("no right to make a pid namespace")
	}
	wrap := []string{"unshare", "--pid", "--fork", "--kill-child"}
	w := t.start(spec{Name: "w", Wrap: wrap})
	t.append("r", do{"gate": "g"})
	t.running("r", 1)
	w.kill()
	t.start(spec{Name: "w", Wrap: wrap})
	t.gate("g")
	t.append("r", nil)
	t.check(allow{duplicates: 3})
	if n := t.number("select count(*) from (select host, pid from keyline.workers group by 1, 2) x"); n != 1 {
		t.fail("the pids differ: nothing was tested")
	}
	if n := t.number("select count(*) from keyline.workers"); n != 2 {
		t.fail("%d incarnations, want 2", n)
	}
}

func twoBinaries(t *stage) {
	t.open()
	one := t.start(spec{Name: "one", Consumers: []string{"a", "tx1"}})
	two := t.start(spec{Name: "two", Consumers: []string{"b", "tx2"}})
	for i := range 60 {
		t.append(fmt.Sprintf("r%d", i%12), do{"ms": i % 7})
	}
	t.awaitDone("r%", 240, 60*time.Second)
	two.kill()
	for i := range 24 {
		t.append(fmt.Sprintf("r%d", i%12), nil)
	}
	t.awaitDone("r%", 288, 60*time.Second)
	if n := t.number("select count(*) from keyline.records where cursor = head"); n != 0 {
		t.fail("%d records settled past a consumer of the other binary", n)
	}
	// What nobody can take is reported: for all by the check that an alarm is made of, for a record by whoever asks.
	reported := func(name string) bool {
		code, output := t.keyline("status", "--check")
		return code == exitFound && strings.Contains(output, "consumer "+name+" is active and no live worker runs it")
	}
	for _, name := range []string{"b", "tx2"} {
		t.eventually("it is said that nobody runs "+name, 20*time.Second, func() bool { return reported(name) })
	}
	if reported("a") || reported("tx1") {
		t.fail("it is said that nobody runs what runs")
	}
	why, err := t.operator().Why(t.ctx, keyline.Key{Record: "r0"})
	t.must(err, "ask why")
	for _, c := range why.Consumers {
		if away := c.Name == "b" || c.Name == "tx2"; away != (c.Reason == keyline.ReasonUnhosted) {
			t.fail("%s is behind on r0 because it is %s", c.Name, c.Reason)
		}
	}
	t.start(spec{Name: "two", Consumers: []string{"b", "tx2"}})
	t.awaitDone("r%", 336, 60*time.Second)
	if reported("b") || reported("tx2") {
		t.fail("it is still said that nobody runs what runs again")
	}
	t.check(allow{duplicates: 24})
	one.signal(syscall.SIGTERM)
	one.ended(30 * time.Second)
}
