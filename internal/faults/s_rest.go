package main

import (
	"errors"
	"fmt"
	"os"
	osexec "os/exec"
	"syscall"
	"time"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/store"
)

var poison = []scenario{
	{"27a", "a handler ends the process", deadly("exit")},
	{"27b", "a handler overflows the stack", deadly("stack")},
	{"27c", "a handler eats the memory", deadly("memory")},
	{"53", "an event kills the process while its sibling gets new events", deadlyBesideTraffic},
	{"29", "12 workers and one failing record", twelve},
	{"31", "a downstream outage fails 2,000 records", downstream},
	{"40", "a NUL byte and invalid UTF-8 in an error", badText},
	{"16", "SQL errors in HandleTx, told and swallowed", sqlErrors},
}

// supervise restarts a worker whenever it has ended, until stopped.
func (t *stage) supervise(s spec) (stop func() (starts int)) {
	quit, done := make(chan struct{}), make(chan int)
	go func() {
		starts := 0
		for {
			starts++
			w := t.launch(s)
			select {
			case <-w.gone:
			case <-quit:
				w.kill()
				done <- starts
				return
			}
			select {
			case <-quit:
				done <- starts
				return
			default:
			}
		}
	}()
	stopped := false
	stop = func() int {
		if stopped {
			return 0
		}
		stopped = true
		close(quit)
		return <-done
	}
	t.onEnd(func() { stop() })
	return stop
}

func deadly(how string) func(*stage) {
	return func(t *stage) {
		t.open()
		t.start(spec{Name: "other", Consumers: []string{"b"}})
		stop := t.supervise(spec{Name: "victim", Consumers: []string{"a", "b"}})
		t.eventually("the victim registers", 30*time.Second, func() bool { return t.number("select count(*) from keyline.consumers") == 2 })
		for i := range 10 {
			t.append(fmt.Sprintf("n%d", i), nil)
		}
		t.append("bad", do{"do": how, "only": "a"})
		t.append("bad", nil)
		for i := range 10 {
			t.append(fmt.Sprintf("n%d", i), nil)
		}
		t.eventually("it is dead-lettered", 100*time.Second, func() bool { return t.number("select count(*) from keyline.dead_letters") == 1 })
		t.check(allow{dead: 1, duplicates: 40, overlaps: true})
		t.found["starts"] = stop()
		if n := t.number("select count(*) from keyline.dead_letters where reason = 'crash_budget' and seq = 1 and crashes >= 0"); n != 1 {
			t.fail("it is not dead-lettered for crashes")
		}
	}
}

func deadlyBesideTraffic(t *stage) {
	t.open()
	t.start(spec{Name: "other", Consumers: []string{"b"}})
	stop := t.supervise(spec{Name: "victim", Consumers: []string{"a", "b"}})
	t.eventually("the victim registers", 30*time.Second, func() bool { return t.number("select count(*) from keyline.consumers") == 2 })
	t.append("bad", do{"do": "exit", "only": "a"})
	t.eventually("it is dead-lettered", 120*time.Second, func() bool {
		t.append("bad", nil)
		t.pause(100 * time.Millisecond)
		return t.number("select count(*) from keyline.dead_letters") == 1
	})
	t.check(allow{dead: 1, duplicates: 300, overlaps: true, within: 2 * time.Minute})
	t.found["starts"] = stop()
}

func twelve(t *stage) {
	t.open()
	for i := range 12 {
		s := spec{Name: fmt.Sprintf("w%d", i), Consumers: []string{"a"}, Attempts: 4, Delay: time.Second}
		if i == 0 {
			t.start(s)
		} else {
			t.launch(s)
		}
	}
	t.eventually("all have joined", 90*time.Second, func() bool { return t.number("select count(*) from keyline.workers where status = 'live'") == 12 })
	t.append("bad", do{"do": "fail"})
	t.append("good", nil)
	t.eventually("it is dead-lettered", 60*time.Second, func() bool { return t.number("select count(*) from keyline.dead_letters") == 1 })
	runs := t.number("select count(*) from crm.delivered_log where mark = 'begin' and record_key = 'bad'")
	if runs != 4 {
		t.fail("%d runs, want 4", runs)
	}
	if n := t.number(`select count(*) from (select at - lag(at) over (order by id) as gap from crm.delivered_log
		where mark = 'begin' and record_key = 'bad') x where gap < interval '850 ms'`); n != 0 {
		t.fail("%d retries came too soon", n)
	}
	t.check(allow{dead: 1})
}

func downstream(t *stage) {
	t.open()
	breaker := keyline.Breaker{Threshold: 0.5, MinRuns: 20, Period: 10 * time.Second, CoolDown: 2 * time.Second}
	t.start(spec{Name: "w1", Consumers: []string{"a", "b"}, Breaker: breaker, Delay: time.Second, Config: keyline.Config{MaxInFlightPerConsumer: 16}})
	// "a" fails until the gate opens: attempts tell nothing, time does.
	t.exec("create table faults.outage (up boolean)")
	for range 4 {
		events := make([]keyline.NewEvent, 500)
		for j := range events {
			events[j] = event(fmt.Sprintf("r%04d", j), do{"do": "outage", "only": "a"})
		}
		_, err := t.client.AppendMany(t.ctx, t.pool, events)
		t.must(err, "append many")
	}
	t.eventually("the sibling goes on", 90*time.Second, func() bool {
		return t.number("select count(*) from crm.delivered_log where mark = 'done' and consumer = 'b'") == 2000
	})
	t.pause(6 * time.Second)
	failed := t.number("select count(*) from crm.delivered_log where mark = 'begin' and consumer = 'a'")
	t.found["failures"] = failed
	if failed > 20+16+20 { // threshold, in flight, probes
		t.fail("%d failures came through the breaker", failed)
	}
	if n := t.number("select count(*) from keyline.failures"); n < failed-1 || n > failed {
		t.fail("%d failures were charged, %d handlers failed", n, failed)
	}
	t.exec("insert into faults.outage values (true)")
	t.check(allow{within: 2 * time.Minute})
}

func badText(t *stage) {
	t.open()
	t.start(spec{Name: "w1", Consumers: []string{"a", "tx"}, Attempts: 2})
	for i := range 40 {
		d := do{}
		if i%10 == 3 {
			d = do{"do": "nul"}
		}
		t.append(fmt.Sprintf("r%d", i), d)
		t.append(fmt.Sprintf("r%d", i), nil)
	}
	t.check(allow{dead: 8})
}

func sqlErrors(t *stage) {
	t.open()
	t.start(spec{Name: "w1", Consumers: []string{"tx"}, Attempts: 3})
	for i, what := range []string{"swallow", "fail", "panic", "permanent"} {
		t.append(fmt.Sprintf("r%d", i), do{"do": what})
		t.append(fmt.Sprintf("r%d", i), nil)
	}
	t.check(allow{dead: 4})
	if n := t.number("select count(*) from keyline.dead_letters where error_code = 'unwritable_outcome'"); n != 0 {
		t.fail("%d outcomes were not written as they were", n)
	}
}

var lifecycle = []scenario{
	{"35a", "SIGTERM twice in mid-handler", sigterm},
	{"35b", "SIGTERM with a handler that does not heed its context", sigtermDeaf},
	{"38", "a hand-back with a late due time races appends", lateHandBack},
	{"41", "a sibling's handler runs for long", longSibling},
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

func lateHandBack(t *stage) {
	t.open()
	t.start(spec{Name: "w1", Consumers: []string{"a", "b"}, Delay: 20 * time.Second, Attempts: 3, Config: keyline.Config{PollInterval: time.Hour}})
	for i := range 40 {
		r := fmt.Sprintf("r%d", i)
		t.append(r, do{"first": 1, "only": "a"})
		t.pause(time.Duration(i*3) * time.Millisecond) // at every moment of the failure, the flush and the hand-back
		t.append(r, nil)
		t.eventually("the sibling gets the event at once", 5*time.Second, func() bool {
			return t.number("select count(*) from crm.delivered_log where mark = 'done' and consumer = 'b' and record_key = $1", r) == 2
		})
	}
	t.check(allow{})
}

func longSibling(t *stage) {
	t.open()
	t.start(spec{Name: "w1"})
	t.append("r", do{"gate": "g", "only": "a"})
	t.append("q", do{"gate": "g", "only": "tx"})
	t.running("r", 1)
	t.running("q", 1)
	t.pause(5 * time.Second)
	for i := range 5 {
		t.append("r", nil)
		t.append("q", nil)
		t.eventually("the siblings get the event within the poll interval", 3*time.Second, func() bool {
			return t.done("r") >= 2*(i+2) && t.done("q") >= 2*(i+2)
		})
		t.pause(700 * time.Millisecond)
	}
	t.gate("g")
	t.check(allow{})
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
	t.start(spec{Name: "two", Consumers: []string{"b", "tx2"}})
	t.awaitDone("r%", 336, 60*time.Second)
	t.check(allow{duplicates: 24})
	one.signal(syscall.SIGTERM)
	one.ended(30 * time.Second)
}

var frozen = []scenario{
	{"42a", "a worker is frozen while it sleeps as sentinel", frozenSentinel},
	{"42b", "a worker is frozen under load, again and again", frozenUnderLoad},
	{"42c", "a worker is frozen inside HandleTx", frozenInTx},
	{"46", "the registry changes while an appender stays open", registryBesideAppender},
	{"49", "backfill while appenders hold records", backfill},
	{"50", "a consumer is paused while it runs, resumed elsewhere", pausedWhileRunning},
	{"51", "commands race settling", commandsRace},
	{"52", "a dead letter's retry waits while its record goes on", deadRetry},
}

func frozenSentinel(t *stage) {
	t.open()
	w1 := t.start(spec{Name: "w1"})
	t.append("r", nil)
	t.awaitDone("r", 3, 20*time.Second)
	t.pause(2 * time.Second) // it sleeps, as sentinel: it is alone
	t.start(spec{Name: "w2", Config: keyline.Config{PollInterval: time.Hour}})
	w1.signal(syscall.SIGSTOP)
	for i := range 10 {
		t.append("r", nil)
		t.append(fmt.Sprintf("q%d", i), nil)
	}
	t.awaitDone("r", 33, 20*time.Second)
	t.awaitDone("q%", 30, 20*time.Second)
	t.pause(3 * time.Second)
	t.append("s", nil)
	t.awaitDone("s", 3, 3*time.Second)
	w1.signal(syscall.SIGCONT)
	t.append("s", nil)
	t.awaitDone("s", 6, 10*time.Second)
	t.check(allow{})
}

func frozenUnderLoad(t *stage) {
	t.open()
	w1 := t.start(spec{Name: "w1"})
	t.start(spec{Name: "w2"})
	stop := t.load(15)
	for i := range 8 {
		t.pause(time.Duration(400+37*i) * time.Millisecond)
		w1.signal(syscall.SIGSTOP)
		began := t.house.clock.Mono()
		for range 10 { // appends go through
			t.append(fmt.Sprintf("load%d", i), nil)
		}
		if d := t.house.clock.Mono() - began; d > 2*time.Second {
			t.fail("10 appends beside a frozen worker took %s", d)
		}
		t.pause(time.Duration(500+i%2*3000) * time.Millisecond)
		w1.signal(syscall.SIGCONT)
	}
	t.found["appended_under_load"] = stop()
	t.check(allow{duplicates: 4 * 15 * 3, overlaps: true, within: 2 * time.Minute})
}

func frozenInTx(t *stage) {
	t.open()
	w1 := t.start(spec{Name: "w1", Consumers: []string{"tx"}})
	t.append("r", do{"gate": "g"})
	t.running("r", 1)
	w1.signal(syscall.SIGSTOP)
	t.start(spec{Name: "w2", Consumers: []string{"tx"}})
	t.appendN("r", 3)
	t.append("q", nil)
	t.awaitDone("q", 1, 10*time.Second)
	t.gate("g")
	t.awaitDone("r", 4, 30*time.Second)
	w1.signal(syscall.SIGCONT)
	t.append("r", nil)
	t.awaitDone("r", 5, 30*time.Second)
	t.check(allow{overlaps: true})
}

func (t *stage) operator() *store.Store {
	cfg := t.pool.Config()
	s, err := store.Open(t.ctx, store.Config{Pool: cfg})
	t.must(err, "open a store")
	t.onEnd(s.Close)
	return s
}

func registryBesideAppender(t *stage) {
	t.open()
	t.start(spec{Name: "w1", Consumers: []string{"a", "b"}})
	s := t.operator()
	tx := t.begin()
	t.appendIn(tx, "held", nil)
	for i := range 5 {
		began := t.house.clock.Mono()
		t.must(s.SetStatus(t.ctx, "b", core.Paused, "op", ""), "pause")
		t.append(fmt.Sprintf("r%d", i), nil)
		t.must(s.SetStatus(t.ctx, "b", core.Active, "op", ""), "resume")
		if d := t.house.clock.Mono() - began; d > 5*time.Second {
			t.fail("two registry changes beside an open transaction took %s", d)
		}
		t.awaitDone(fmt.Sprintf("r%d", i), 2, 10*time.Second)
	}
	t.must(tx.Commit(t.ctx), "commit")
	t.awaitDone("held", 2, 10*time.Second)
	t.check(allow{})
}

func backfill(t *stage) {
	t.open()
	t.start(spec{Name: "w1", Consumers: []string{"a"}})
	for i := range 60 {
		t.append(fmt.Sprintf("r%d", i%20), nil)
	}
	t.awaitDone("r%", 60, 30*time.Second)
	tx, other := t.begin(), t.begin()
	for i := range 5 {
		t.appendIn(tx, fmt.Sprintf("r%d", i), nil)
		t.appendIn(other, fmt.Sprintf("r%d", 10+i), nil)
	}
	t.appendIn(other, "new", nil)
	t.start(spec{Name: "w2", Consumers: []string{"late", "txlate"}, Begin: true})
	t.pause(3 * time.Second)
	for i := range 20 {
		if i >= 5 && i < 10 || i >= 15 {
			t.append(fmt.Sprintf("r%d", i), nil)
		}
	}
	t.must(tx.Commit(t.ctx), "commit")
	t.pause(2 * time.Second)
	t.must(other.Rollback(t.ctx), "roll back")
	t.eventually("the backfill ends", 60*time.Second, func() bool {
		return t.number("select count(*) from keyline.consumers where status = 'active' and sweep is null") == 3
	})
	t.check(allow{})
	if n := t.number("select count(*) from crm.delivered_log where mark = 'done' and consumer = 'late'"); n != 75 {
		t.fail("%d deliveries of the late consumer, want 75", n)
	}
}

func pausedWhileRunning(t *stage) {
	t.open()
	w1 := t.start(spec{Name: "w1", Consumers: []string{"a", "b"}})
	s := t.operator()
	t.append("r", do{"gate": "g", "only": "a"})
	t.running("r", 1)
	t.must(s.SetStatus(t.ctx, "a", core.Paused, "op", ""), "pause")
	t.append("r", nil)
	t.awaitDone("r", 2, 20*time.Second)
	t.start(spec{Name: "w2", Consumers: []string{"a", "b"}})
	t.pause(2 * time.Second)
	t.must(s.SetStatus(t.ctx, "a", core.Active, "op", ""), "resume")
	t.appendN("r", 2)
	t.awaitDone("r", 4, 20*time.Second)
	t.pause(2 * time.Second)
	t.gate("g")
	t.awaitDone("r", 8, 30*time.Second)
	t.check(allow{})
	_ = w1
}

func commandsRace(t *stage) {
	t.open()
	t.start(spec{Name: "w1", Consumers: []string{"a", "b"}, Delay: time.Hour, Attempts: 3})
	s := t.operator()
	for i := range 40 {
		r := fmt.Sprintf("r%d", i)
		t.append(r, do{"first": 1, "only": "a"})
		t.running(r, 1)
		t.pause(time.Duration(i*2) * time.Millisecond)
		if i%2 == 0 {
			t.append(r, nil)
		}
		record, err := s.FindRecord(t.ctx, keyline.Key{Record: r})
		t.must(err, "find the record")
		consumer, err := s.FindConsumer(t.ctx, "a")
		t.must(err, "find the consumer")
		t.eventually("the retry is taken", 20*time.Second, func() bool {
			id, err := s.Command(t.ctx, core.Command{Record: record, Kind: core.CommandRetry, Consumer: consumer, Actor: "op"}, r)
			t.must(err, "command")
			_, err = s.AwaitCommand(t.ctx, id)
			t.must(err, "await the command")
			return t.number("select count(*) from crm.delivered_log where mark = 'begin' and consumer = 'a' and record_key = $1 and seq = 1", r) >= 2
		})
	}
	t.check(allow{})
}

func deadRetry(t *stage) {
	t.open()
	w := t.start(spec{Name: "w1", Consumers: []string{"a", "b"}, Attempts: 2, Delay: 3 * time.Second})
	s := t.operator()
	t.append("r", do{"first": 3, "only": "a"})
	t.append("r", nil)
	t.eventually("it is dead-lettered", 30*time.Second, func() bool { return t.number("select count(*) from keyline.dead_letters where status = 'open'") == 1 })
	record, err := s.FindRecord(t.ctx, keyline.Key{Record: "r"})
	t.must(err, "find the record")
	letter := int64(t.number("select id from keyline.dead_letters"))
	consumer, err := s.FindConsumer(t.ctx, "a")
	t.must(err, "find the consumer")
	id, err := s.Command(t.ctx, core.Command{Record: record, Kind: core.CommandRetryDead, Consumer: consumer, Seq: 1, DeadLetter: letter, Actor: "op"}, "r")
	t.must(err, "command")
	_, err = s.AwaitCommand(t.ctx, id)
	t.must(err, "await the command")
	t.eventually("the retry fails once", 20*time.Second, func() bool {
		return t.number("select count(*) from crm.delivered_log where mark = 'begin' and consumer = 'a' and seq = 1") == 3
	})
	t.append("r", nil) // its record goes on, and settles but for the retry
	t.awaitDone("r", 5, 10*time.Second)
	w.kill()
	t.start(spec{Name: "w2", Consumers: []string{"a", "b"}, Attempts: 2, Delay: 3 * time.Second})
	t.append("r", nil)
	t.eventually("the retry runs", 30*time.Second, func() bool {
		return t.number("select count(*) from keyline.dead_letters where status = 'delivered'") == 1
	})
	t.eventually("everything settles", 30*time.Second, func() bool { return t.try("select count(*) from keyline.mailboxes") == 0 })
	if n := t.done("r"); n != 8 {
		t.fail("%d deliveries, want 8", n)
	}
}

var registry = []scenario{
	{"44", "repeatable read is the role's default", isolation},
	{"45", "PREPARE TRANSACTION with an append", prepared},
	{"33", "an operator pauses and resumes from two terminals at once", twoOperators},
}

func isolation(t *stage) {
	t.open()
	t.exec("create role reader superuser login password 'x'")
	t.onEnd(func() { _, _ = t.pool.Exec(t.ctx, "drop role if exists reader") })
	t.exec("alter database " + t.name + " set default_transaction_isolation = 'repeatable read'")
	t.start(spec{Name: "w1"})
	t.start(spec{Name: "w2"})
	s := t.operator()
	stop := t.load(10)
	for range 4 {
		t.pause(500 * time.Millisecond)
		t.must(s.SetStatus(t.ctx, "b", core.Paused, "op", ""), "pause")
		t.pause(500 * time.Millisecond)
		t.must(s.SetStatus(t.ctx, "b", core.Active, "op", ""), "resume")
	}
	t.found["appended_under_load"] = stop()
	t.check(allow{})
}

func prepared(t *stage) {
	t.open()
	t.start(spec{Name: "w1", Config: keyline.Config{PollInterval: 500 * time.Millisecond}})
	for i, asleep := range []bool{true, false} {
		if asleep {
			t.pause(2 * time.Second)
		} else {
			t.append("busy", do{"ms": 1500})
			t.running("busy", 1)
		}
		tx := t.begin()
		_, err := tx.Exec(t.ctx, "set local keyline.wake = off")
		t.must(err, "set")
		r := fmt.Sprintf("r%d", i)
		t.appendIn(tx, r, nil)
		_, err = tx.Exec(t.ctx, "prepare transaction '"+t.name+r+"'")
		t.must(err, "prepare")
		t.append("beside", nil)
		t.pause(time.Second)
		t.exec("commit prepared '" + t.name + r + "'")
		t.awaitDone(r, 3, 10*time.Second)
	}
	t.check(allow{})
}

func twoOperators(t *stage) {
	t.open()
	t.start(spec{Name: "w1"})
	one, two := t.operator(), t.operator()
	errs := make(chan error, 2)
	stop := t.load(10)
	for _, s := range []*store.Store{one, two} {
		go func() {
			for range 10 {
				for _, to := range []core.Status{core.Paused, core.Active} {
					if err := s.SetStatus(t.ctx, "b", to, "op", ""); err != nil && !errors.Is(err, keyline.ErrConflict) {
						errs <- err
						return
					}
				}
			}
			errs <- nil
		}()
	}
	t.must(<-errs, "change the registry")
	t.must(<-errs, "change the registry")
	t.found["appended_under_load"] = stop()
	if t.number("select count(*) from keyline.consumers where status = 'paused'") > 0 {
		t.must(one.SetStatus(t.ctx, "b", core.Active, "op", ""), "resume")
	}
	t.check(allow{})
}

var environment = []scenario{
	{"25", "everything through PgBouncer in transaction mode", bouncer},
	{"43", "the database clock steps forward and back", clockSteps},
	{"22b", "packets are dropped in a network namespace", namespace},
}

func bouncer(t *stage) {
	path, err := osexec.LookPath("pgbouncer")
	if err != nil {
		path = "/usr/sbin/pgbouncer"
	}
	if _, err := os.Stat(path); err != nil {
		t.skip("pgbouncer is not installed")
	}
	t.open()
	url := t.bouncer(path)
	t.start(spec{Name: "w1", URL: url, Config: keyline.Config{PollInterval: 300 * time.Millisecond}})
	t.start(spec{Name: "w2", URL: url, ListenURL: t.url()})
	stop := t.load(15)
	t.append("slow", do{"ms": 3000})
	t.append("failing", do{"first": 2})
	t.append("bad", do{"do": "permanent"})
	t.pause(6 * time.Second)
	t.found["appended_under_load"] = stop()
	t.check(allow{dead: 3})
	if n := t.number("select count(*) from keyline.dead_letters where error_code = 'unwritable_outcome'"); n != 0 {
		t.fail("%d outcomes were not written as they were", n)
	}
}
