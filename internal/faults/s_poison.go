package main

import (
	"fmt"
	"time"

	"github.com/keylinehq/keyline"
)

var poison = []scenario{
	{"27a", "a handler ends the process", deadly("exit")},
	{"27b", "a handler overflows the stack", deadly("stack")},
	{"27c", "a handler eats the memory", deadly("memory")},
	{"53", "an event kills the process while its sibling gets new events", deadlyBesideTraffic},
	{"29", "12 workers and one failing record", twelve},
	{"31", "a downstream outage fails 2,000 records", downstream},
	{"40", "a NUL byte and invalid UTF-8 in an error", badText},
	{"16", "SQL errors in HandleTx, told and swallowed, and a failure after a write", sqlErrors},
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
	for i, what := range []string{"swallow", "fail", "writes", "panic", "permanent"} {
		t.append(fmt.Sprintf("r%d", i), do{"do": what})
		t.append(fmt.Sprintf("r%d", i), nil)
	}
	t.check(allow{dead: 5})
	if n := t.number("select count(*) from keyline.dead_letters where error_code = 'unwritable_outcome'"); n != 0 {
		t.fail("%d outcomes were not written as they were", n)
	}
	// Written, failed and charged: the failure stays, what was written does not.
	if n := t.number("select count(*) from keyline.failures where error_message = 'it has written, and failed'"); n != 3 {
		t.fail("%d failures of a handler that had written, want 3", n)
	}
	if n := t.number("select count(*) from faults.effects"); n != 0 {
		t.fail("%d writes of handlers that failed have stayed", n)
	}
}
