package main

import (
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/clock"
)

var settling = []scenario{
	{"6a", "appends race settling, under load", settleRace},
	{"6b", "an append meets a settle at each of its steps", settleSteps},
}

// settleRace keeps records at the edge between empty and not, from many sides at once.
func settleRace(t *stage) {
	t.open()
	t.start(spec{Name: "w1", Consumers: []string{"a", "tx"}})
	t.start(spec{Name: "w2", Consumers: []string{"a", "tx"}})
	const appenders, each = 6, 250
	var group sync.WaitGroup
	errs := make(chan error, appenders)
	for i := range appenders {
		group.Go(func() {
			random := clock.NewRand(uint64(i))
			for range each {
				tx, err := t.pool.Begin(t.ctx)
				if err == nil {
					_, err = t.client.Append(t.ctx, tx, event(fmt.Sprintf("r%d", random.IntN(5)), nil))
				}
				if err != nil {
					errs <- err
					return
				}
				if random.IntN(5) == 0 {
					_ = tx.Rollback(t.ctx)
				} else if err := tx.Commit(t.ctx); err != nil {
					errs <- err
					return
				}
				t.pause(time.Duration(random.IntN(12)) * time.Millisecond)
			}
		})
	}
	group.Wait()
	select {
	case err := <-errs:
		t.fatal("append: %v", err)
	default:
	}
	t.check(allow{})
}

// meeting is how an append comes upon a settle that is held at a step.
type meeting struct {
	name     string
	open     bool // its transaction has appended before the settle comes
	after    bool // it ends after the settle has gone on
	rollback bool
}

var meetings = []meeting{
	{name: "whole"}, {name: "begun", after: true}, {name: "begun and rolled back", after: true, rollback: true},
	{name: "open", open: true}, {name: "open and rolled back", open: true, rollback: true},
	{name: "open for longer", open: true, after: true}, {name: "open for longer and rolled back", open: true, after: true, rollback: true},
}

// settleSteps holds the transaction that settles a record at each step that the
// protocol between a worker and its server has, and lets every kind of append meet it
// there. No poll comes to the rescue: what is forgotten stays so.
//
// The steps within the statement (its locks, its second look, its delete) are
// taken one by one in store: TestASettleMeetsAnAppendAtEveryStep and
// TestAnAppendWaitsForASettleInFlightAndFindsNoMailbox.
func settleSteps(t *stage) {
	t.open()
	p, url := t.newProxy()
	t.start(spec{Name: "w1", URL: url, ListenURL: t.url(), Consumers: []string{"a"}, Config: keyline.Config{PollInterval: time.Hour, Lease: time.Minute}})
	met := 0
	for _, at := range []step{beforeStatement, beforeCommit, beforeReply} {
		for _, m := range meetings {
			for skip := range 2 { // the first group commit of the event, and the next where there is one
				if t.meet(p, at, m, skip, fmt.Sprintf("r%d %s, %s", skip, m.name, at)) {
					met++
				}
			}
		}
	}
	t.found["met"] = met
	if met < 3*len(meetings) {
		t.fail("only %d meetings", met)
	}
	t.check(allow{})
}

// meet is one record, one settle and one append.
func (t *stage) meet(p *proxy, at step, m meeting, skip int, record string) (met bool) {
	t.append(record, do{"gate": record})
	t.running(record, 1)
	var tx pgx.Tx
	if m.open {
		tx = t.begin()
		t.appendIn(tx, record, nil)
	}
	trap := p.setTrap(&trap{marker: "keyline.flush(", at: at, skip: skip}, false)
	t.gate(record)
	met = trap.holds(t, time.Duration(1+29*(1-skip))*time.Second)
	if !met {
		p.unset()
		if skip == 0 {
			t.fatal("%s: no group commit", record)
		}
	}
	appended := make(chan error, 1)
	if m.open {
		close(appended)
	} else {
		conn := t.connect()
		waits := fmt.Sprintf("select count(*) from pg_stat_activity where pid = %d and wait_event_type = 'Lock'", conn.PgConn().PID())
		go func() {
			var err error
			if tx, err = conn.Begin(t.ctx); err == nil {
				_, err = t.client.Append(t.ctx, tx, event(record, nil))
			}
			appended <- err
			close(appended)
		}()
		// It goes through, or waits for the settle.
		t.eventually(record+": the append", 20*time.Second, func() bool { return len(appended) == 1 || t.number(waits) == 1 })
	}
	if m.after || len(appended) == 0 && !m.open {
		trap.release()
		t.must(<-appended, "append")
		if m.after {
			t.pause(30 * time.Millisecond)
		}
	}
	t.must(<-appended, "append")
	want := 2
	if m.rollback {
		want = 1
		t.must(tx.Rollback(t.ctx), "roll back")
	} else {
		t.must(tx.Commit(t.ctx), "commit")
	}
	trap.release()
	t.eventually(record+" is delivered and settles", 20*time.Second, func() bool {
		return t.done(record) == want && t.number("select count(*) from keyline.mailboxes") == 0
	})
	return met
}
