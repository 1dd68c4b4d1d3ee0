package main

import (
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline"
)

var backoff = []scenario{
	{"10", "a batch fails on its first event after effects of the next", batchFails},
	{"13", "a worker is killed while deliveries are in backoff", killedInBackoff},
	{"28", "a parked event is retried with a younger one behind it", parkedRetry},
	{"30", "500 deliveries in backoff hold nothing", heldByBackoff},
}

// batchFails: what a batch has done before it fails happens again, which its
// idempotency key lets a handler see, and nothing overtakes the event that failed.
func batchFails(t *stage) {
	t.open()
	t.start(spec{Name: "w1", Consumers: []string{"batch", "batch1"}, Attempts: 3, Define: map[string]definition{
		"batch": {Types: []string{"fault.staged"}}, "batch1": {Types: []string{"fault.once"}, Attempts: 1}}})
	batches := []struct {
		record, kind string
		first        do // the first of three
		runs         string
	}{
		{"mends", "fault.staged", do{"first": 1}, "123@1 1@2 23@1"},
		{"dies", "fault.staged", do{"first": 1000}, "123@1 1@2 1@3 23@1"},
		// A batch that failed says nothing of its first event alone: not even for good, or where there is one run.
		{"refused", "fault.staged", do{"do": "permanent"}, "123@1 1@2 23@1"},
		{"once", "fault.once", do{"first": 1000}, "123@1 1@2 2@1 3@1"}, // at once, under the same claim
	}
	for _, b := range batches {
		tx := t.begin() // so that they are one batch
		b.first["last"] = true
		for _, d := range []do{b.first, {"do": "effect"}, {"do": "effect"}} {
			e := event(b.record, d)
			e.Type = b.kind
			_, err := t.client.Append(t.ctx, tx, e)
			t.must(err, "append")
		}
		t.must(tx.Commit(t.ctx), "commit")
	}
	t.awaitDone("mends", 3, 30*time.Second)
	for _, b := range batches[1:] {
		t.awaitDone(b.record, 2, 30*time.Second)
	}
	for _, b := range batches {
		var got string
		t.must(t.pool.QueryRow(t.ctx, `select string_agg(seqs || '@' || attempt, ' ' order by first) from (
			select run, string_agg(seq::text, '' order by seq) as seqs, min(attempt) as attempt, min(id) as first
			from crm.delivered_log where mark = 'begin' and record_key = $1 group by run) x`, b.record).Scan(&got), "read the runs")
		if got != b.runs {
			t.fail("the runs of %s were %s, want %s", b.record, got, b.runs)
		}
	}
	if n := t.number(`select count(*) from (select 1 from faults.effects group by record_key, seq
		having count(*) <> 2 or count(distinct key) <> 1 or not bool_or(redelivered)) x`); n != 0 {
		t.fail("%d events had effects that were not twice, under one key, said to be a repetition", n)
	}
	if n := t.number("select (select count(*) from keyline.failures where seq <> 1) + (select count(*) from keyline.dead_letters where seq <> 1)"); n != 0 {
		t.fail("%d failures and dead letters are charged to events that did not fail", n)
	}
	t.check(allow{dead: 3})
}

// dueTime is what has to outlive a process.
type dueTime struct {
	Record, Consumer string
	Seq              int64
	Attempt          int
	At               time.Time
}

func (t *stage) dueTimes() []dueTime {
	rows, err := t.pool.Query(t.ctx, `select r.record_key, c.name, k.seq + 1, k.attempt, k.next_attempt_at
		from keyline.checkpoints k join keyline.records r on r.id = k.record_id join keyline.consumers c on c.id = k.consumer_id
		where k.state = 'backoff' order by 1, 2`)
	t.must(err, "read due times")
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[dueTime])
	t.must(err, "read due times")
	return list
}

// killedInBackoff kills the worker with deliveries in their first and second
// backoff, on records that nobody holds and on one that a sibling's handler keeps claimed.
func killedInBackoff(t *stage) {
	t.open()
	s := spec{Name: "w1", Consumers: []string{"a", "tx", "batch"}, Delay: 9 * time.Second, Attempts: 4}
	w := t.start(s)
	for _, c := range s.Consumers {
		t.append("r"+c, do{"first": 2, "only": c})
		t.append("r"+c, nil)
	}
	t.append("claimed", do{"first": 2, "only": "a"})
	t.append("claimed", do{"gate": "g", "only": "tx"})
	t.running("claimed", 2)
	t.eventually("all are in backoff", 20*time.Second, func() bool { return len(t.dueTimes()) == 4 })
	// Four runs have failed and one is held up; all others are written down, so that the kill makes nothing come twice.
	t.eventually("all else is written", 20*time.Second, func() bool { return t.number("select sum(completed) from keyline.consumer_health") == 15 })
	before := t.dueTimes()
	w.kill()
	s.Name = "w2"
	t.start(s)
	// Its claim is taken from the dead before any of them is due, and nothing of them changes.
	t.eventually("the other record is taken over", 8*time.Second, func() bool {
		return t.number("select count(*) from crm.delivered_log where mark = 'begin' and worker like 'w2%' and record_key = 'claimed' and seq = 2") == 1
	})
	after := t.dueTimes()
	if fmt.Sprint(before) != fmt.Sprint(after) {
		t.fail("due times were %v, and are %v", before, after)
	}
	t.gate("g")
	for _, d := range before {
		if d.Attempt != 1 {
			t.fail("%s of %s has had %d runs, not one", d.Consumer, d.Record, d.Attempt)
		}
		run := "select count(*) from crm.delivered_log where mark = 'begin' and record_key = $1 and consumer = $2 and seq = $3 and attempt = 2 and at >= $4"
		t.eventually("its second run comes", 20*time.Second, func() bool { return t.number(run, d.Record, d.Consumer, d.Seq, d.At) == 1 })
		if n := t.number("select count(*) from crm.delivered_log where mark = 'begin' and record_key = $1 and consumer = $2 and seq = $3", d.Record, d.Consumer, d.Seq); n != 2 {
			t.fail("%s of %s has run %d times by its second attempt", d.Consumer, d.Record, n)
		}
	}
	t.check(allow{})
}

// parkedRetry lets other records go on while one is parked, and its siblings.
func parkedRetry(t *stage) {
	t.open()
	t.exec("create table faults.outage (up boolean)")
	t.start(spec{Name: "w1", Consumers: []string{"a", "b"}, Attempts: 2, Define: map[string]definition{"a": {Park: true}}})
	t.appendN("r", 4)
	t.append("r", do{"do": "outage", "only": "a"})
	t.eventually("it is parked", 20*time.Second, func() bool {
		return t.number("select count(*) from keyline.checkpoints where state = 'parked' and seq = 4") == 1
	})
	t.append("r", nil)
	t.awaitDone("r", 4+6, 10*time.Second) // b goes on
	for i := range 200 {
		t.append(fmt.Sprintf("other%d", i%10), nil)
	}
	t.awaitDone("other%", 400, 30*time.Second)
	if n := t.number(begun+" and consumer = 'a'", "r", 6); n != 0 {
		t.fatal("the younger event has overtaken the parked one")
	}
	t.exec("insert into faults.outage values (true)")
	letters, err := t.operator().DeadLetters(t.ctx, keyline.DeadLetterFilter{})
	t.must(err, "list dead letters")
	if len(letters) != 1 {
		t.fatal("%d dead letters, want 1", len(letters))
	}
	_, err = t.operator().RetryDeadLetter(t.ctx, letters[0].ID, "")
	t.must(err, "retry")
	t.awaitDone("r", 12, 20*time.Second)
	var order string
	t.must(t.pool.QueryRow(t.ctx, `select string_agg(seq::text, ' ' order by id) from crm.delivered_log
		where mark = 'done' and consumer = 'a' and record_key = 'r' and seq >= 5`).Scan(&order), "read the order")
	if order != "5 6" {
		t.fail("delivered %s, want 5 6", order)
	}
	t.check(allow{})
}

// heldByBackoff has more deliveries in backoff than there are slots or connections.
func heldByBackoff(t *stage) {
	t.open()
	const many = 500
	s := spec{Name: "w1", Consumers: []string{"a", "tx"}, Delay: time.Hour, Pool: 4, Config: keyline.Config{MaxInFlight: 8}}
	w := t.start(s)
	t.append("warm", nil)
	t.awaitDone("warm", 2, 20*time.Second)
	sessions := "select count(*) from pg_stat_activity where application_name like 'keyline %'"
	idle := func() bool { return w.figures().Health.Resident == 0 }
	t.eventually("it has nothing", 20*time.Second, idle)
	before, connections := w.figures(), t.number(sessions)
	for i := range many {
		t.append(fmt.Sprintf("r%d", i), do{"first": 1, "only": s.Consumers[i%2]})
	}
	t.append("busy", do{"first": 1, "only": "a"}) // and one that a sibling has work on
	t.append("busy", do{"gate": "g", "only": "tx"})
	t.running("busy", 2)
	t.eventually("all are in backoff", 60*time.Second, func() bool { return len(t.dueTimes()) == many+1 })
	claimed := "select count(*) from keyline.mailboxes where claimed_by is not null"
	t.eventually("one claim is left, for the sibling", 10*time.Second, func() bool { return t.number(claimed) == 1 })
	t.append("busy", nil)
	began := t.house.clock.Mono()
	t.append("fresh", nil) // there is a slot for others, at once
	t.awaitDone("fresh", 2, 5*time.Second)
	t.found["fresh_ms"] = (t.house.clock.Mono() - began).Milliseconds()
	t.gate("g")
	t.eventually("no claim is left", 10*time.Second, func() bool { return t.number(claimed) == 0 })
	t.eventually("it has nothing", 20*time.Second, idle)
	after, left := w.figures(), t.number(sessions)
	t.found["goroutines"] = fmt.Sprintf("%d, with %d in backoff %d", before.Goroutines, many+1, after.Goroutines)
	if after.Goroutines > before.Goroutines+20 { // pools come and go
		t.fail("%d goroutines, %d before", after.Goroutines, before.Goroutines)
	}
	// HandleTx's pool may have filled up to its 4.
	t.found["sessions"] = fmt.Sprintf("%d, then %d", connections, left)
	if left > connections+8 {
		t.fail("%d sessions, %d before", left, connections)
	}
	if n := t.number("select count(*) from keyline.mailboxes where due_at < clock_timestamp() + interval '45 minutes'"); n != 0 {
		t.fail("%d records are due before their backoff ends", n)
	}
	t.check(allow{unsettled: true})
}
