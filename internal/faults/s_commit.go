package main

import (
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline"
)

var commitOrder = []scenario{
	{"1", "an appender commits late", lateCommit},
	{"2", "commit order against transaction order", commitAgainstXid},
	{"3", "an appender's backend is killed in mid-transaction, twice", killedAppender},
	{"4", "foreign sessions sit idle in transaction", idleSessions},
	{"5", "5,000 events in one transaction that stays open", bigTransaction},
	{"47", "one transaction over 3,000 records stays open", wideTransaction},
	{"45", "PREPARE TRANSACTION with an append", prepared},
}

func (t *stage) begin() pgx.Tx {
	tx, err := t.connect().Begin(t.ctx)
	t.must(err, "begin")
	return tx
}

func (t *stage) appendIn(tx pgx.Tx, record string, d do) {
	_, err := t.client.Append(t.ctx, tx, event(record, d))
	t.must(err, "append in a transaction")
}

func lateCommit(t *stage) {
	t.open()
	// A poll that never comes: the commit itself has to be the wake-up.
	t.start(spec{Name: "w1", Config: keyline.Config{PollInterval: time.Hour}})
	t.start(spec{Name: "w2", Config: keyline.Config{PollInterval: time.Hour}})
	a := t.begin()
	t.appendIn(a, "slow", nil)
	t.append("fast", nil)
	t.awaitDone("fast", 3, 20*time.Second)
	t.pause(3 * time.Second) // longer than everybody needs to fall asleep
	if t.done("slow") != 0 {
		t.fatal("delivered before its commit")
	}
	t.must(a.Commit(t.ctx), "commit")
	t.awaitDone("slow", 3, 10*time.Second)
	// Once more from deep sleep, and two late ones that overlap.
	b, c := t.begin(), t.begin()
	t.appendIn(b, "slow", nil)
	t.appendIn(c, "slower", nil)
	t.pause(time.Second)
	t.must(b.Commit(t.ctx), "commit")
	t.awaitDone("slow", 6, 10*time.Second)
	t.pause(time.Second)
	t.must(c.Commit(t.ctx), "commit")
	t.awaitDone("slower", 3, 10*time.Second)
	t.check(allow{})
}

func commitAgainstXid(t *stage) {
	t.open()
	t.start(spec{Name: "w1"})
	for i := range 20 {
		r := fmt.Sprintf("r%d", i)
		t1 := t.begin()
		_, err := t1.Exec(t.ctx, "insert into faults.gates values ($1)", r)
		t.must(err, "write first")
		t2 := t.begin()
		t.appendIn(t2, r, nil)
		t.must(t2.Commit(t.ctx), "commit")
		t.appendIn(t1, r, nil)
		if i%2 == 0 {
			t.awaitDone(r, 3, 20*time.Second)
		}
		t.must(t1.Commit(t.ctx), "commit")
	}
	t.check(allow{})
}

func killedAppender(t *stage) {
	t.open()
	t.start(spec{Name: "w1", Config: keyline.Config{PollInterval: time.Hour}})
	t.appendN("r", 2)
	for range 2 {
		conn := t.connect()
		tx, err := conn.Begin(t.ctx)
		t.must(err, "begin")
		t.appendIn(tx, "r", nil)
		t.appendIn(tx, "new", nil)
		t.pause(500 * time.Millisecond)
		t.exec("select pg_terminate_backend($1)", conn.PgConn().PID())
		_ = tx.Rollback(t.ctx) // dead already
	}
	t.appendN("r", 2)
	t.appendN("new", 1)
	t.awaitDone("r", 12, 20*time.Second)
	t.awaitDone("new", 3, 20*time.Second)
	t.check(allow{})
}

func idleSessions(t *stage) {
	t.open()
	t.start(spec{Name: "w1"})
	for _, sql := range []string{"select count(*) from keyline.events", "insert into faults.gates values ('x')",
		"select pg_advisory_xact_lock(1), pg_advisory_lock(2)", "lock table keyline.events in share mode"} {
		tx := t.begin()
		_, err := tx.Exec(t.ctx, sql)
		t.must(err, sql)
		if sql[:4] == "lock" {
			t.must(tx.Rollback(t.ctx), "roll back") // a table lock of share mode refuses appends; not ours to mend
		}
	}
	other := t.begin()
	t.appendIn(other, "held", nil)
	for i := range 50 {
		t.append(fmt.Sprintf("free%d", i), nil)
	}
	t.awaitDone("free%", 150, 30*time.Second)
	t.must(other.Commit(t.ctx), "commit")
	t.check(allow{})
}

func bigTransaction(t *stage) {
	t.open()
	t.start(spec{Name: "w1", Consumers: []string{"a", "batch"}})
	big := t.begin()
	for i := range 10 {
		events := make([]keyline.NewEvent, 500)
		for j := range events {
			events[j] = event(fmt.Sprintf("big%d", (i*500+j)%7), nil)
		}
		_, err := t.client.AppendMany(t.ctx, big, events)
		t.must(err, "append many")
		t.append(fmt.Sprintf("side%d", i), nil)
		t.awaitDone("side%", 2*(i+1), 30*time.Second)
	}
	if n := t.done("big%"); n != 0 {
		t.fatal("%d delivered before the commit", n)
	}
	t.must(big.Commit(t.ctx), "commit")
	t.check(allow{within: 3 * time.Minute})
	if n := t.done("big%"); n != 10000 {
		t.fail("%d deliveries of the big transaction, want 10000", n)
	}
}

func wideTransaction(t *stage) {
	t.open()
	t.start(spec{Name: "w1", Consumers: []string{"a"}, Config: keyline.Config{MaxRecords: 500}})
	// First an event each, so that they have been resident; then the wide one holds them all.
	wide := t.begin()
	for i := range 6 {
		events := make([]keyline.NewEvent, 500)
		for j := range events {
			events[j] = event(fmt.Sprintf("wide%04d", i*500+j), nil)
		}
		_, err := t.client.AppendMany(t.ctx, t.pool, events)
		t.must(err, "append many")
		_, err = t.client.AppendMany(t.ctx, wide, events)
		t.must(err, "append many")
	}
	for i := range 50 {
		t.append(fmt.Sprintf("free%d", i), nil)
	}
	t.awaitDone("free%", 50, 40*time.Second)
	t.awaitDone("wide%", 3000, time.Minute)
	for i := range 50 {
		t.append(fmt.Sprintf("free%d", i), nil)
	}
	t.awaitDone("free%", 100, 20*time.Second)
	t.must(wide.Commit(t.ctx), "commit")
	t.check(allow{within: 2 * time.Minute})
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
