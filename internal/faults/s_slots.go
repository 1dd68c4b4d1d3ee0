package main

import (
	"fmt"
	osexec "os/exec"
	"syscall"
	"time"

	"github.com/keylinehq/keyline"
)

var slots = []scenario{
	{"9", "every batch and prefetch is on, with three workers", everyOption},
	{"11", "100,000 events wait behind a parked one", parkedGiant},
	{"19a", "all slots are blocked and the pool is exhausted", slotsBlocked},
	{"19b", "handlers starve their process of the processor", starved},
	{"24", "recovery without a pause beside delivery", recoverAllTheTime},
}

// everyOption: however much is fetched ahead, one delivery is in flight per record and consumer.
func everyOption(t *stage) {
	t.open()
	define := map[string]definition{"a": {Window: 40}, "tx": {Window: 8}, "batch": {Batch: 20, Window: 60}}
	for i := range 3 {
		t.start(spec{Name: fmt.Sprintf("w%d", i), Consumers: []string{"a", "tx", "batch"}, Define: define, Delay: 30 * time.Millisecond,
			Config: keyline.Config{ClaimBatch: 1000, MaxInFlight: 512, MaxInFlightPerConsumer: 256, FlushDelay: 300 * time.Millisecond, Linger: time.Millisecond, PollInterval: 20 * time.Millisecond}})
	}
	stop := t.load(12)
	for i := range 100 {
		events := make([]keyline.NewEvent, 24)
		for j := range events {
			d := do{"ms": (i + j) % 7}
			if (i+j)%31 == 0 {
				d["first"] = 1
			}
			events[j] = event(fmt.Sprintf("load%d", j%12), d)
		}
		_, err := t.client.AppendMany(t.ctx, t.pool, events)
		t.must(err, "append many")
	}
	t.found["appended_under_load"] = stop()
	t.check(allow{within: 2 * time.Minute})
	var most int
	t.must(t.pool.QueryRow(t.ctx, "select max(n) from (select count(*) n from crm.delivered_log where mark = 'begin' group by run) x").Scan(&most), "read the batches")
	if t.found["largest_batch"] = most; most < 10 {
		t.fail("the largest batch was %d: nothing was fetched ahead", most)
	}
}

// latency is how long probes waited for a handler, in milliseconds, and how many events the server read for them.
type latency struct {
	drain    time.Duration
	p50, p90 float64
	reads    int
}

func (l latency) String() string {
	return fmt.Sprintf("drain %.1f s, p50 %.1f ms, p90 %.1f ms, %d events read", l.drain.Seconds(), l.p50, l.p90, l.reads)
}

// measure drains 10,000 healthy records and then sends 200 probes, one by one.
func (t *stage) measure(round int, healthy []string, beside func(int)) (l latency) {
	began := t.house.clock.Mono()
	t.appendBulk(healthy, "fault.staged", 1)
	t.awaitDone("healthy%", round*len(healthy), 2*time.Minute)
	l.drain = t.house.clock.Mono() - began
	reads := "select coalesce(idx_tup_fetch, 0) + seq_tup_read from pg_stat_user_tables where schemaname = 'keyline' and relname = 'events'"
	t.pause(time.Second) // statistics of the server are as late as this
	before := t.number(reads)
	for i := range 200 {
		beside(i)
		t.append(fmt.Sprintf("probe%d-%d", round, i), nil)
		t.pause(10 * time.Millisecond)
	}
	t.awaitDone(fmt.Sprintf("probe%d-%%", round), 200, 30*time.Second)
	t.pause(time.Second)
	l.reads = t.number(reads) - before
	t.must(t.pool.QueryRow(t.ctx, `select percentile_cont(0.5) within group (order by ms), percentile_cont(0.9) within group (order by ms) from (
		select 1000 * extract(epoch from l.at - e.created_at)::double precision as ms
		from crm.delivered_log l join keyline.records r using (record_key) join keyline.events e on e.record_id = r.id and e.seq = l.seq
		where l.mark = 'begin' and l.record_key like $1) x`, fmt.Sprintf("probe%d-%%", round)).Scan(&l.p50, &l.p90), "read the latency")
	return l
}

// parkedGiant compares claims with and without a giant that waits for an
// operator, and lets it grow meanwhile. What it may cost is measured by the
// benchmarks, on a calm machine; here a factor of three is what the neighbours may do.
func parkedGiant(t *stage) {
	t.open()
	t.start(spec{Name: "w1", Consumers: []string{"batch"}, Define: map[string]definition{"batch": {Batch: 500, Window: 500, Park: true, Attempts: 1}}})
	healthy := make([]string, 10000)
	for i := range healthy {
		healthy[i] = fmt.Sprintf("healthy%d", i)
	}
	without := t.measure(1, healthy, func(int) {})
	t.append("giant", do{"do": "permanent"})
	t.eventually("it is parked", 20*time.Second, func() bool { return t.number("select count(*) from keyline.checkpoints where state = 'parked'") == 1 })
	t.appendBulk([]string{"giant"}, "fault.staged", 100000)
	with := t.measure(2, healthy, func(i int) {
		if i%10 == 0 {
			t.append("giant", nil)
		}
	})
	t.found["without"], t.found["with"] = without.String(), with.String()
	if n := t.done("giant"); n != 0 {
		t.fail("%d events were delivered past the parked one", n)
	}
	if with.p50 > 3*without.p50+5 || with.p90 > 3*without.p90+20 {
		t.fail("probes waited %s with a parked giant, %s without", with, without)
	}
	if with.drain > 3*without.drain {
		t.fail("10,000 records took %s with a parked giant, %s without", with, without)
	}
	// 20 appends to the giant, each of which may have it looked at.
	if with.reads > without.reads+20*2000 {
		t.fail("%d events were read for the probes with a parked giant, %d without", with.reads, without.reads)
	}
	letters, err := t.operator().DeadLetters(t.ctx, keyline.DeadLetterFilter{})
	t.must(err, "list dead letters")
	_, err = t.operator().ResolveDeadLetter(t.ctx, letters[0].ID, "staged")
	t.must(err, "resolve")
	t.awaitDone("giant", 100020, 90*time.Second)
	t.check(allow{dead: 1})
}

// slotsBlocked: what handlers hold is nothing that a lease needs.
func slotsBlocked(t *stage) {
	t.open()
	w := t.start(spec{Name: "w1", Consumers: []string{"a", "tx"}, Pool: 3, Config: keyline.Config{MaxInFlight: 12, MaxInFlightPerConsumer: 8}})
	t.start(spec{Name: "w2", Consumers: []string{"other"}}) // an observer that takes nothing over
	for i := range 40 {
		t.append(fmt.Sprintf("r%d", i), do{"gate": "g", "deaf": true})
	}
	// HandleTx's handlers that begin have a connection; the others of its slots wait for one.
	begins := "select count(*) from crm.delivered_log where mark = 'begin' and consumer in ('a', 'tx')"
	t.eventually("all slots are taken", 30*time.Second, func() bool { return t.number(begins) >= 3+4 })
	t.pause(500 * time.Millisecond)
	beats := "select beat from keyline.workers where name = 'w1'"
	begun, beat := t.number(begins), t.number(beats)
	t.pause(8 * time.Second) // four leases
	if n := t.number(begins); n != begun {
		t.fail("%d handlers began beside full slots", n-begun)
	}
	n := t.number(beats) - beat
	if t.found["renewals"] = n; n < 8 {
		t.fail("%d renewals in four leases", n)
	}
	if f := w.figures(); f.Health.Fenced != 0 || f.Health.State != "running" {
		t.fail("it is %s, and was fenced %d times", f.Health.State, f.Health.Fenced)
	}
	t.gate("g")
	t.check(allow{})
	if n := t.number("select count(*) from keyline.workers where status <> 'live'"); n != 0 {
		t.fail("%d workers were lost", n)
	}
}

// starved: a handler leaves its process no time on its one processor, and cannot be interrupted, for three leases. The
// process is alone at first, since whoever else could take its records would: it fences itself or is found lost, comes back
// as another incarnation, and begins nothing beside the handlers that go on. Then, with another worker, handlers take as
// much as it may keep its lease with. Nothing that it says counts twice.
func starved(t *stage) {
	t.open()
	env, err := osexec.LookPath("env")
	if err != nil {
		t.skip("env (coreutils) is not there")
	}
	w := t.start(spec{Name: "w1", Consumers: []string{"a", "tx"}, Procs: 1, Wrap: []string{env, "GODEBUG=asyncpreemptoff=1"}, Attempts: 10,
		Config: keyline.Config{MaxInFlight: 400, MaxInFlightPerConsumer: 300}})
	t.start(spec{Name: "w2", Consumers: []string{"z"}, Define: map[string]definition{"z": {Types: []string{"none"}}}}) // it only observes
	const many, held = 120, 3
	for i := range held {
		t.append(fmt.Sprintf("held%d", i), do{"gate": "g", "deaf": true, "only": "a"})
		t.running(fmt.Sprintf("held%d", i), 1)
	}
	events := make([]keyline.NewEvent, 0, 2*many)
	for i := range 2 * many {
		events = append(events, event(fmt.Sprintf("r%d", i%many), do{"spin": 20 * (1 - i/many)}))
	}
	_, err = t.client.AppendMany(t.ctx, t.pool, events)
	t.must(err, "append many")
	t.append("hog", do{"hog": 6000, "only": "a"})
	gone := "select count(*) from keyline.workers where status <> 'live'"
	t.eventually("it loses its lease", 60*time.Second, func() bool { return t.try(gone) > 0 })
	t.awaitDone("r%", 4*many, 2*time.Minute)
	t.eventually("it has come back to what it had", 30*time.Second, func() bool {
		return t.number(`select count(*) from keyline.mailboxes m join keyline.workers w on w.id = m.claimed_by join keyline.records r on r.id = m.record_id
			where w.status = 'live' and w.name = 'w1' and r.record_key like 'held%'`) == held
	})
	t.pause(2 * time.Second)
	if n := t.number("select count(*) from crm.delivered_log where mark = 'begin' and consumer = 'a' and record_key like 'held%'"); n != held {
		t.fail("%d runs beside handlers of the same process that go on", n-held)
	}
	t.gate("g")
	t.start(spec{Name: "w3", Consumers: []string{"a", "tx"}, Attempts: 10})
	for i := range 20 {
		t.append(fmt.Sprintf("q%d", i), do{"spin": 50})
	}
	t.awaitDone("q%", 40, time.Minute)
	t.found["fenced"] = w.figures().Health.Fenced
	t.found["workers_lost"] = t.number("select count(*) from keyline.workers where status = 'lost'")
	t.found["workers_left"] = t.number("select count(*) from keyline.workers where status = 'left'")
	t.eventually("all live", 30*time.Second, func() bool {
		return t.number("select count(*) from keyline.workers where status = 'live'") == 3 &&
			t.number("select count(distinct name) from keyline.workers where status = 'live'") == 3
	})
	if n := t.number("select count(*) from keyline.failures"); n != 0 {
		t.fail("%d attempts were burned", n)
	}
	// Each loss may repeat what was in flight, which is at most one event of each record for each of two consumers.
	t.check(allow{duplicates: int64(t.number(gone) * 2 * (many + held + 20)), overlaps: true, within: 90 * time.Second})
}

// recoverAllTheTime runs recovery from several sessions without a pause, beside
// delivery, beside a worker that stops with a handler that runs on, and beside one that is killed.
func recoverAllTheTime(t *stage) {
	t.open()
	t.start(spec{Name: "w1", Consumers: []string{"a", "tx"}})
	w2 := t.start(spec{Name: "w2", Consumers: []string{"a", "tx"}})
	sweeps := make(chan int, 3)
	quit := make(chan struct{})
	for range 3 {
		conn := t.connect()
		go func() {
			n := 0
			for {
				select {
				case <-quit:
					sweeps <- n
					return
				default:
				}
				if _, err := conn.Exec(t.ctx, "select keyline.recover(1000)"); err != nil {
					sweeps <- -1
					return
				}
				n++
			}
		}()
	}
	stop := t.load(10)
	t.pause(4 * time.Second)
	_, err := t.operator().RecoverStaleClaims(t.ctx, "")
	if !isNothingToDo(err) {
		t.fail("an operator's recovery beside two healthy workers says %v", err)
	}
	if n := t.repeated(); n != 0 {
		t.fail("%d deliveries were repeated beside recovery", n)
	}
	// A worker that leaves with a handler that runs on keeps its claim for a lease.
	w3 := t.start(spec{Name: "w3", Consumers: []string{"z"}, Config: keyline.Config{ShutdownGrace: 200 * time.Millisecond, Lease: 6 * time.Second}, Stay: true})
	t.append("stays", do{"gate": "g", "deaf": true, "only": "z"})
	t.eventually("its handler runs", 20*time.Second, func() bool { return t.number(begun+" and consumer = 'z'", "stays", 1) == 1 })
	w3.signal(syscall.SIGTERM)
	if !w3.says("stopped running=1", 20*time.Second) {
		t.fatal("it does not stop")
	}
	t.start(spec{Name: "w4", Consumers: []string{"z"}, Config: keyline.Config{Lease: 6 * time.Second}})
	t.pause(3 * time.Second)
	if n := t.number(begun+" and consumer = 'z'", "stays", 1); n != 1 {
		t.fail("%d runs beside one that still goes on", n-1)
	}
	t.gate("g")
	w2.kill()
	t.pause(3 * time.Second)
	t.found["appended_under_load"] = stop()
	close(quit)
	n := 0
	for range 3 {
		one := <-sweeps
		if one < 0 {
			t.fail("a recovery failed")
		}
		n += one
	}
	t.found["recoveries"] = n
	t.check(allow{duplicates: 10*2 + 1, overlaps: false, within: 90 * time.Second})
}

// repeated counts deliveries that succeeded more than once.
func (t *stage) repeated() int {
	return t.number("select count(*) from (select from crm.delivered_log where mark = 'done' group by consumer, record_key, seq having count(*) > 1) x")
}
