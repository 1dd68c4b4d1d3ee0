package main

import (
	"fmt"
	"net/url"
	"time"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/pgdev"
)

var around = []scenario{
	{"55a", "the password of the workers' role is changed", passwordChanged},
	{"55b", "functions that workers call are away for a moment", functionsAway},
	{"55c", "the role's time limit cancels what waits for a lock", limitReached},
	{"56", "a table is locked for over a minute", lockedTable},
	{"57", "the database is read-only while workers connect", readOnlyForAWhile},
}

// charged: nothing of what happened was the handlers' doing, but for so many attempts.
func (t *stage) charged(attempts int) {
	if n := t.number("select count(*) from keyline.failures"); n != attempts {
		t.fail("%d attempts have failed, want %d", n, attempts)
	}
	if n := t.number("select count(*) from keyline.workers"); n != 1 {
		t.fail("%d incarnations of one worker: it has lost its lease, and less was tested than it seems", n)
	}
	if n := t.repeated(); n != 0 {
		t.fail("%d deliveries were repeated", n)
	}
}

// passwordChanged: sessions that are there go on, and no new one comes about. Those of HandleTx have gone, having had nothing to do.
func passwordChanged(t *stage) {
	t.openOwn(pgdev.Options{TCP: true})
	t.exec("create role worker login superuser password 'old'")
	u, err := url.Parse(t.server.TCPURL(t.name))
	t.must(err, "read a URL")
	u.User = url.UserPassword("worker", "old")
	q := u.Query()
	q.Set("pool_max_conn_idle_time", "5s")
	q.Set("pool_health_check_period", "200ms")
	u.RawQuery = q.Encode()
	t.start(spec{Name: "w1", URL: u.String(), ListenURL: t.url(), Consumers: []string{"tx"}, Attempts: 2, Delay: 100 * time.Millisecond,
		Config: keyline.Config{PollInterval: 200 * time.Millisecond, Lease: 10 * time.Second}})
	t.append("warm", nil)
	t.awaitDone("warm", 1, 20*time.Second)
	t.exec("alter role worker password 'new'")
	t.pause(7 * time.Second)
	for i := range 20 {
		t.append(fmt.Sprintf("r%d", i), nil)
	}
	t.pause(4 * time.Second)
	if n := t.done("r%"); n > 10 {
		t.fail("%d deliveries: the worker has had connections, and nothing was tested", n)
	}
	t.exec("alter role worker password 'old'")
	t.check(allow{})
	t.charged(0)
}

// away takes a function of the schema away, all forms of it, and gives them back.
func (t *stage) away(name string) (back func()) {
	rename := func(from, to string) {
		t.exec(fmt.Sprintf(`do $$ declare f regprocedure; begin
			for f in select p.oid from pg_proc p where p.pronamespace = 'keyline'::regnamespace and p.proname = '%s' loop
				execute format('alter function %%s rename to %s', f);
			end loop; end $$`, from, to))
	}
	rename(name, name+"_away")
	return func() { rename(name+"_away", name) }
}

// functionsAway: as between a migration and the rights that come after it. What handlers have done is not thrown away.
func functionsAway(t *stage) {
	t.open()
	t.start(spec{Name: "w1", Consumers: []string{"a", "tx"}, Attempts: 2, Delay: 3 * time.Second, Config: keyline.Config{Lease: 10 * time.Second}})
	for i := range 10 {
		t.append(fmt.Sprintf("r%d", i), do{"gate": "g", "first": i % 2, "only": "a"})
	}
	t.eventually("handlers run", 20*time.Second, func() bool {
		return t.number("select count(*) from crm.delivered_log where mark = 'begin' and consumer = 'a'") == 10
	})
	flush, hold := t.away("flush"), t.away("hold")
	t.gate("g")
	for i := range 10 {
		t.append(fmt.Sprintf("q%d", i), nil)
	}
	t.pause(4 * time.Second)
	flush()
	hold()
	t.check(allow{})
	t.charged(5)
	if n := t.number("select count(*) from keyline.failures where error_message = 'not yet'"); n != 5 {
		t.fail("of 5 failures %d say why", n)
	}
}

// limitReached: a group commit waits for somebody's lock for longer than the role lets any statement run.
func limitReached(t *stage) {
	t.open()
	t.start(spec{Name: "w1", URL: t.url() + "&statement_timeout=300ms", Consumers: []string{"a", "tx"}, Attempts: 2, Delay: time.Hour,
		Config: keyline.Config{Lease: 15 * time.Second}})
	for i := range 10 {
		t.append(fmt.Sprintf("r%d", i), do{"gate": "g", "only": "a"})
	}
	t.eventually("handlers run", 20*time.Second, func() bool {
		return t.number("select count(*) from crm.delivered_log where mark = 'begin' and consumer = 'a'") == 10
	})
	tx := t.begin()
	_, err := tx.Exec(t.ctx, "lock table keyline.checkpoints, keyline.consumer_health in access exclusive mode")
	t.must(err, "lock")
	t.gate("g")
	t.pause(4 * time.Second)
	t.must(tx.Rollback(t.ctx), "roll back")
	t.check(allow{})
	t.charged(0)
}

// lockedTable: the server goes on waiting for whoever has gone, and must not run out of connections for that; nor must leases end.
func lockedTable(t *stage) {
	t.openOwn(pgdev.Options{})
	const pool = 10
	t.start(spec{Name: "w1", Consumers: []string{"a", "tx"}, Pool: pool, Attempts: 2, Delay: time.Hour, Config: keyline.Config{Lease: 10 * time.Second}})
	for i := range 400 {
		t.append(fmt.Sprintf("r%d", i%40), do{"ms": 100})
	}
	t.awaitDone("r%", 100, 30*time.Second)
	tx := t.begin()
	_, err := tx.Exec(t.ctx, "lock table keyline.mailboxes in access exclusive mode")
	t.must(err, "lock")
	most := 0
	end := t.house.clock.Mono() + 66*time.Second // three times what it waits for an answer
	for t.house.clock.Mono() < end {
		most = max(most, t.number("select count(*) from pg_stat_activity where application_name like 'keyline %'"))
		t.pause(500 * time.Millisecond)
	}
	t.must(tx.Rollback(t.ctx), "roll back")
	// Its connections, and one of each on its way out.
	if t.found["most_sessions"] = most; most > 2*(pool+10) {
		t.fail("one worker has had %d sessions", most)
	}
	t.check(allow{})
	t.charged(0)
}

// readOnlyForAWhile: as a server is that a failover has made a standby, or that is about to be one. Sessions that were begun then stay
// read-only for as long as they live, whatever becomes of the server.
func readOnlyForAWhile(t *stage) {
	t.open()
	keeper := t.connect()
	t.start(spec{Name: "w1", Direct: t.url() + "&default_transaction_read_only=off"})
	t.append("r", nil)
	t.awaitDone("r", 3, 20*time.Second)
	_, err := keeper.Exec(t.ctx, fmt.Sprintf("alter database %s set default_transaction_read_only = on", t.name))
	t.must(err, "make it read-only")
	t.number("select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = current_database() and application_name like 'keyline %'")
	t.pause(6 * time.Second) // three leases
	_, err = keeper.Exec(t.ctx, fmt.Sprintf("alter database %s reset default_transaction_read_only", t.name))
	t.must(err, "make it writable")
	_, err = t.client.Append(t.ctx, keeper, event("r", nil))
	t.must(err, "append")
	t.eventually("it delivers", 20*time.Second, func() bool { return t.done("r") >= 6 })
	t.check(allow{duplicates: 3})
	t.noCrashCharged()
}
