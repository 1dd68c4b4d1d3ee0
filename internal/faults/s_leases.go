package main

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/pgdev"
)

var leases = []scenario{
	{"12", "a claim is lost and regained while the first handler is blocked", regained},
	{"18a", "a handler runs three leases long", longHandler},
	{"18b", "the heartbeat is cut while a handler runs", heartbeatCut},
	{"20", "SIGSTOP for one and a half leases", stopped},
	{"21a", "Postgres restarts in mid-handler, three times", restarts},
	{"21b", "Postgres crashes in mid-handler", crashes},
	{"21c", "backends are terminated in a storm", storm},
	{"22a", "packets of the present connections vanish", vanish},
	{"22d", "packets vanish, but for the heartbeat's", vanishButBeat},
	{"22c", "packets of the sentinel's sessions vanish", vanishedSentinel},
	{"54", "a database outage longer than the lease", outage},
	{"8", "workers are killed over and over under load", killing},
}

func regained(t *stage) {
	t.open()
	t.start(spec{Name: "w1", Consumers: []string{"a", "b"}})
	t.append("r", do{"gate": "g", "deaf": true, "only": "a"})
	t.running("r", 1)
	t.appendN("r", 3)
	t.awaitDone("r", 4, 20*time.Second) // b goes on
	for range 3 {                       // the claim is lost under its feet
		t.exec("update keyline.mailboxes set claimed_by = null, claimed_at = null, token = nextval('keyline.tokens'), due_at = clock_timestamp(), unclean = true")
		t.pause(time.Second)
	}
	if n := t.number("select count(*) from crm.delivered_log where mark = 'begin' and consumer = 'a'"); n != 1 {
		t.fail("%d runs beside the one that goes on", n)
	}
	t.gate("g")
	t.awaitDone("r", 8, 30*time.Second)
	// One of b in its window, and one of a: the zombie's, which does not count.
	t.check(allow{duplicates: 2})
}

func longHandler(t *stage) {
	t.open()
	t.start(spec{Name: "w1"})
	t.start(spec{Name: "w2"})
	t.append("r", do{"ms": 6500, "only": "a"})
	t.append("q", do{"ms": 6500, "only": "tx"})
	t.appendN("r", 2)
	t.appendN("q", 2)
	t.check(allow{})
	if n := t.number("select count(*) from keyline.workers where status <> 'live'"); n != 0 {
		t.fail("%d workers were lost", n)
	}
}

func heartbeatCut(t *stage) {
	t.open()
	w := t.start(spec{Name: "w1", Consumers: []string{"a", "tx"}})
	t.append("r", do{"gate": "g", "only": "a"})
	t.append("q", do{"gate": "g", "deaf": true, "only": "tx"})
	t.running("r", 1)
	t.running("q", 1)
	// Renewals wait for this lock; nothing else does.
	tx := t.begin()
	_, err := tx.Exec(t.ctx, "select from keyline.workers where name = 'w1' for update")
	t.must(err, "lock the worker's row")
	t.pause(3500 * time.Millisecond) // it fences itself
	t.must(tx.Rollback(t.ctx), "roll back")
	t.start(spec{Name: "w2", Consumers: []string{"a", "tx"}})
	t.pause(3 * time.Second)
	t.gate("g")
	t.appendN("r", 2)
	t.appendN("q", 2)
	t.awaitDone("r", 6, 40*time.Second)
	t.awaitDone("q", 6, 40*time.Second)
	t.check(allow{duplicates: 1, overlaps: true})
	w.signal(syscall.SIGTERM)
	if !w.ended(40 * time.Second) {
		t.fail("the worker that was fenced does not stop")
	}
}

func stopped(t *stage) {
	t.open()
	w := t.start(spec{Name: "w1"})
	for i := range 6 {
		t.append(fmt.Sprintf("r%d", i), do{"gate": "g", "deaf": i%2 == 0})
	}
	t.eventually("handlers run", 20*time.Second, func() bool { return t.number("select count(*) from crm.delivered_log") >= 18 })
	w.signal(syscall.SIGSTOP)
	t.pause(3 * time.Second)
	w.signal(syscall.SIGCONT)
	t.gate("g")
	t.start(spec{Name: "w2"})
	for i := range 6 {
		t.appendN(fmt.Sprintf("r%d", i), 2)
	}
	t.awaitDone("r%", 54, 60*time.Second)
	t.check(allow{duplicates: 18, overlaps: true})
	t.eventually("it comes back as a new incarnation", 30*time.Second, func() bool {
		return t.number("select count(*) from keyline.workers where name = 'w1'") > 1 && t.number("select count(*) from keyline.workers where name = 'w1' and status = 'live'") == 1
	})
}

// load appends to n records until it is told to stop; it goes on through outages.
func (t *stage) load(records int) (stop func() int) {
	ctx, cancel := context.WithCancel(t.ctx)
	done := make(chan int)
	go func() {
		n := 0
		for i := 0; ctx.Err() == nil; i++ {
			short, end := context.WithTimeout(ctx, 5*time.Second)
			if _, err := t.client.Append(short, t.pool, event(fmt.Sprintf("load%d", i%records), nil)); err == nil {
				n++
			}
			end()
			timer := t.house.clock.NewTimer(8 * time.Millisecond)
			select {
			case <-timer.C():
			case <-ctx.Done():
			}
			timer.Stop()
		}
		done <- n
	}()
	return func() int { cancel(); return <-done }
}

func restarts(t *stage) {
	t.openOwn(pgdev.Options{Durable: true})
	t.start(spec{Name: "w1"})
	t.start(spec{Name: "w2"})
	stop := t.load(20)
	for range 3 {
		t.append("slow", do{"ms": 800})
		t.pause(1500 * time.Millisecond)
		t.must(t.server.Restart(t.ctx), "restart")
		t.eventually("it answers", 20*time.Second, func() bool { return t.try("select 1") == 1 })
	}
	n := stop()
	t.found["appended_under_load"] = n
	t.check(allow{duplicates: 100, within: 90 * time.Second})
	t.noCrashCharged()
}

func (t *stage) noCrashCharged() {
	if n := t.number("select count(*) from keyline.checkpoints where crashes > 0"); n != 0 {
		t.fail("%d checkpoints were charged a crash", n)
	}
	if n := t.number("select count(*) from keyline.workers where status = 'lost'"); n != 0 {
		t.fail("%d workers were marked lost", n)
	}
}

func crashes(t *stage) {
	t.openOwn(pgdev.Options{Durable: true})
	t.start(spec{Name: "w1"})
	t.start(spec{Name: "w2"})
	stop := t.load(20)
	for range 3 {
		t.append("slow", do{"ms": 800})
		t.pause(1500 * time.Millisecond)
		t.server.Kill()
		t.must(t.server.Restart(t.ctx), "restart")
		t.eventually("it answers", 20*time.Second, func() bool { return t.try("select 1") == 1 })
	}
	t.found["appended_under_load"] = stop()
	t.check(allow{duplicates: 100, within: 90 * time.Second})
	t.noCrashCharged()
}

func storm(t *stage) {
	t.openOwn(pgdev.Options{})
	t.start(spec{Name: "w1"})
	t.start(spec{Name: "w2"})
	stop := t.load(20)
	for range 15 {
		t.pause(300 * time.Millisecond)
		t.try("select count(pg_terminate_backend(pid)) from pg_stat_activity where application_name like 'keyline %'")
	}
	t.found["appended_under_load"] = stop()
	t.check(allow{duplicates: 100, within: 90 * time.Second})
	t.noCrashCharged()
}

func vanish(t *stage) {
	t.open()
	p, url := t.newProxy()
	t.start(spec{Name: "w1", URL: url})
	for i := range 10 {
		t.append(fmt.Sprintf("r%d", i), nil)
	}
	t.awaitDone("r%", 30, 30*time.Second)
	t.append("slow", do{"ms": 4000, "deaf": true, "only": "a"})
	t.running("slow", 1)
	t.awaitDone("slow", 2, 20*time.Second)
	t.found["stalled"] = p.stallAll()
	for i := range 10 {
		t.append(fmt.Sprintf("r%d", i), nil)
	}
	// Alone, with a network that has forgotten its connections: it gives them up at the end of its lease, or, where
	// the heartbeat has found itself another one, when they have been silent for too long.
	t.awaitDone("r%", 60, 70*time.Second)
	t.awaitDone("slow", 3, 45*time.Second)
	t.check(allow{duplicates: 6, overlaps: true})
}

func outage(t *stage) {
	t.open()
	p, url := t.newProxy()
	t.start(spec{Name: "w1", URL: url})
	t.start(spec{Name: "w2", URL: url})
	for i := range 20 {
		t.append(fmt.Sprintf("r%d", i), do{"gate": "g", "deaf": i%2 == 0})
	}
	t.eventually("handlers run", 30*time.Second, func() bool { return t.number("select count(*) from crm.delivered_log") >= 60 })
	p.refuseNew(true)
	p.cutAll()
	t.pause(6 * time.Second) // three leases
	p.refuseNew(false)
	t.pause(2 * time.Second)
	t.gate("g")
	for i := range 20 {
		t.append(fmt.Sprintf("r%d", i), nil)
	}
	t.check(allow{duplicates: 60, overlaps: true})
	t.noCrashCharged()
}

func killing(t *stage) {
	t.open()
	workers := []*worker{}
	for i := range 3 {
		workers = append(workers, t.start(spec{Name: fmt.Sprintf("w%d", i), Consumers: []string{"a", "tx", "batch"}}))
	}
	stop := t.load(15)
	for i := range 6 {
		t.pause(1200 * time.Millisecond)
		workers[i%3].kill()
		workers[i%3] = t.start(spec{Name: fmt.Sprintf("w%d", i%3), Consumers: []string{"a", "tx", "batch"}, Config: keyline.Config{CrashBudget: 20}})
	}
	t.found["appended_under_load"] = stop()
	t.check(allow{duplicates: 6 * 15 * 6, within: 2 * time.Minute})
}

// vanishedSentinel: the server goes on believing in a sentinel that has lost
// touch. Somebody has to be elected all the same.
func vanishedSentinel(t *stage) {
	t.open()
	p, url := t.newProxy()
	t.start(spec{Name: "w1", ListenURL: url})
	t.append("r", nil)
	t.awaitDone("r", 3, 20*time.Second)
	t.pause(time.Second)
	locks := "select count(*) from pg_locks where locktype = 'advisory' and granted and database = (select oid from pg_database where datname = current_database())"
	t.eventually("it sleeps as sentinel", 20*time.Second, func() bool { return t.number(locks+" and mode = 'ExclusiveLock'") >= 2 })
	old := t.number("select min(pid) from pg_locks where locktype = 'advisory' and granted and database = (select oid from pg_database where datname = current_database())")
	t.found["stalled"] = p.stallAll()
	for i := range 10 {
		t.append("r", nil)
		t.awaitDone("r", 3*(i+2), 5*time.Second) // by the poll, if by nothing else
	}
	t.eventually("there is a sentinel again", 60*time.Second, func() bool {
		return t.number(locks+" and pid <> $1", old) >= 2 && t.number(locks+" and pid = $1", old) == 0
	})
	t.check(allow{})
}

// vanishButBeat: a worker that keeps its lease all along must not keep records
// behind connections that nothing comes back from.
func vanishButBeat(t *stage) {
	t.open()
	p, url := t.newProxy()
	t.start(spec{Name: "w1", URL: url, ListenURL: t.url(), Config: keyline.Config{Lease: 5 * time.Minute}})
	for i := range 10 {
		t.append(fmt.Sprintf("r%d", i), nil)
	}
	t.awaitDone("r%", 30, 30*time.Second)
	// Not "tx": its own statement would wait on a connection that is gone, and how long a handler may do so only its
	// timeout says.
	t.append("slow", do{"ms": 1000, "deaf": true, "only": "a"})
	t.running("slow", 1)
	t.awaitDone("slow", 2, 20*time.Second)
	t.found["stalled"] = p.stallAll()
	for i := range 10 {
		t.append(fmt.Sprintf("r%d", i), nil)
	}
	t.awaitDone("r%", 60, 75*time.Second)
	t.awaitDone("slow", 3, 75*time.Second)
	t.check(allow{duplicates: 6, within: 2 * time.Minute})
	if n := t.number("select count(*) from keyline.workers"); n != 1 {
		t.fail("the worker has lost its lease: nothing was tested")
	}
}
