package main

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/store"
)

var registry = []scenario{
	{"44", "repeatable read is the role's default", isolation},
	{"46", "the registry changes while an appender stays open", registryBesideAppender},
	{"49", "backfill while appenders hold records", backfill},
	{"50", "a consumer is paused while it runs, resumed elsewhere", pausedWhileRunning},
	{"32a", "consumers are registered by each start rule, and renamed", startRules},
	{"33b", "two terminals rebuild at once, twice, beside traffic", rebuild},
	{"33a", "an operator pauses and resumes from two terminals at once", twoOperators},
}

func registryBesideAppender(t *stage) {
	t.open()
	t.start(spec{Name: "w1", Consumers: []string{"a", "b"}})
	s := t.store()
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
	t.start(spec{Name: "w1", Consumers: []string{"a", "b"}})
	s := t.store()
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
}

func isolation(t *stage) {
	t.open()
	t.exec("create role reader superuser login password 'x'")
	t.onEnd(func() { _, _ = t.pool.Exec(t.ctx, "drop role if exists reader") })
	t.exec("alter database " + t.name + " set default_transaction_isolation = 'repeatable read'")
	t.start(spec{Name: "w1"})
	t.start(spec{Name: "w2"})
	s := t.store()
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

func twoOperators(t *stage) {
	t.open()
	t.start(spec{Name: "w1"})
	one, two := t.store(), t.store()
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

// startRules: where a new consumer begins is its rule's to say, on records that
// are settled, that have work, that an appender holds and that come later; a renamed one goes on.
func startRules(t *stage) {
	t.open()
	s := spec{Name: "w1", Consumers: []string{"a", "old"}}
	w := t.start(s)
	t.appendN("settled", 3)
	t.appendN("busy", 2)
	t.awaitDone("%", 10, 20*time.Second)
	t.pause(10 * time.Millisecond)
	var middle time.Time
	t.must(t.pool.QueryRow(t.ctx, "select clock_timestamp()").Scan(&middle), "read the clock")
	t.appendN("settled", 2)
	t.append("busy", do{"gate": "g", "only": "a"})
	t.awaitDone("settled", 10, 20*time.Second)
	t.running("busy", 3)
	tx := t.begin()
	t.appendIn(tx, "settled", nil)
	t.eventually("all but what runs is written down", 20*time.Second, func() bool {
		return t.number("select count(*) from keyline.mailboxes where cursor = 3") == 1
	})
	s.Name, s.Consumers = "w2", []string{"now", "beginning", "at"}
	s.Define = map[string]definition{"beginning": {Start: keyline.Beginning()}, "at": {Start: keyline.At(middle)}}
	t.start(s)
	// The backfills have passed all records but the one that the appender holds, and wait for that.
	t.eventually("the backfills have come through", 30*time.Second, func() bool {
		return t.number(`select count(*) from keyline.consumers where name in ('beginning', 'at') and (sweep is distinct from 'backfill' or sweep_record = 9223372036854775807)`) == 2
	})
	if n := t.number("select count(*) from keyline.consumers where status = 'backfilling'"); n != 2 {
		t.fail("%d consumers are being backfilled beside an appender that holds a record, want 2", n)
	}
	t.must(tx.Commit(t.ctx), "commit")
	t.append("later", nil)
	t.eventually("the backfills end", 60*time.Second, func() bool {
		return t.number("select count(*) from keyline.consumers where status = 'active' and sweep is null") == 5
	})
	t.gate("g")
	t.append("busy", nil)
	t.awaitDone("later", 5, 20*time.Second)
	t.eventually("everything settles", 30*time.Second, func() bool { return t.try("select count(*) from keyline.mailboxes") == 0 })
	// "now" starts above what the furthest of the others was done with: on busy one still ran the third event.
	for _, want := range []struct{ consumer, settled, busy, later string }{
		{"old", "1 2 3 4 5 6", "1 2 3 4", "1"}, {"now", "6", "4", "1"}, {"beginning", "1 2 3 4 5 6", "1 2 3 4", "1"}, {"at", "4 5 6", "3 4", "1"},
	} {
		for record, seqs := range map[string]string{"settled": want.settled, "busy": want.busy, "later": want.later} {
			if got := t.order(record, want.consumer); got != seqs {
				t.fail("%s got %s of %s, want %s", want.consumer, got, record, seqs)
			}
		}
	}
	// Renamed while a worker with the old name runs: its place stays, nobody runs beside it, and the old code no longer does.
	id := t.number("select id from keyline.consumers where name = 'old'")
	t.start(spec{Name: "w3", Consumers: []string{"new"}, Define: map[string]definition{"new": {PreviousNames: []string{"old"}, Revision: 2}}})
	t.appendN("settled", 2)
	t.eventually("it goes on under its new name", 20*time.Second, func() bool { return t.order("settled", "new") == "7 8" })
	if n := t.number("select id from keyline.consumers where name = 'new'"); n != id {
		t.fail("the renamed consumer is %d, it was %d", n, id)
	}
	if got := t.order("settled", "old"); got != "1 2 3 4 5 6" {
		t.fail("under its old name it got %s", got)
	}
	w.signal(syscall.SIGTERM)
	if !w.ended(40 * time.Second) {
		t.fatal("a worker does not stop")
	}
	t.start(spec{Name: "w4", Consumers: []string{"a"}})
	t.append("settled", nil)
	t.eventually("all go on", 20*time.Second, func() bool {
		return t.order("settled", "new") == "7 8 9" && t.order("settled", "a") == "1 2 3 4 5 6 7 8 9"
	})
	t.exec("update crm.delivered_log set consumer = 'new' where consumer = 'old'") // the recorder goes by the present name
	t.check(allow{})
}

// rebuild: a projection is built anew by a consumer of a new name that starts at
// the beginning, while the present one goes on. Two processes come with it at once, and the next day with another.
func rebuild(t *stage) {
	t.open()
	t.start(spec{Name: "w1", Consumers: []string{"a", "b"}})
	const records = 12
	for i := range records {
		t.appendN(fmt.Sprintf("load%d", i), 5)
	}
	t.awaitDone("load%", 2*5*records, 30*time.Second)
	stop := t.load(records)
	for _, name := range []string{"txrebuilt1", "rebuilt2"} {
		s := spec{Consumers: []string{name}, Begin: true}
		var both []*worker
		// A flush that takes its time keeps both before the registry until each has seen that the consumer is not there.
		gate := t.begin()
		_, err := gate.Exec(t.ctx, "select pg_advisory_xact_lock_shared(keyline.barrier_key())")
		t.must(err, "hold the registry's barrier")
		for _, terminal := range []string{"one", "two"} {
			s.Name = terminal + name
			both = append(both, t.launch(s))
		}
		t.eventually("both want to register it", 30*time.Second, func() bool {
			return t.number(`select count(distinct a.application_name) from pg_locks l join pg_stat_activity a using (pid)
				where l.locktype = 'advisory' and l.mode = 'ExclusiveLock' and not l.granted and a.datname = current_database()
					and (l.classid, l.objid) = (select h.classid, h.objid from pg_locks h where h.pid = $1 and h.locktype = 'advisory')`, gate.Conn().PgConn().PID()) == 2
		})
		t.must(gate.Rollback(t.ctx), "let them go")
		for _, w := range both {
			if !w.says("ready", 60*time.Second) {
				t.fatal("a terminal's worker does not start")
			}
		}
		t.eventually("the rebuild is through", 60*time.Second, func() bool {
			return t.number("select count(*) from keyline.consumers where name = $1 and status = 'active' and sweep is null", name) == 1
		})
	}
	t.found["appended_under_load"] = stop()
	t.check(allow{within: 90 * time.Second})
	if n := t.number("select count(*) from keyline.consumers"); n != 4 {
		t.fail("%d consumers, want 4", n)
	}
	if t.number("select min(seq) from crm.delivered_log where consumer = 'rebuilt2'") != 1 {
		t.fail("the rebuild did not start at the beginning")
	}
}
