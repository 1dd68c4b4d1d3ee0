package main

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/keylinehq/keyline"
)

var frozen = []scenario{
	{"42a", "a worker is frozen while it sleeps as sentinel", frozenSentinel},
	{"42b", "a worker is frozen under load, again and again", frozenUnderLoad},
	{"42c", "a worker is frozen inside HandleTx", frozenInTx},
	{"42d", "a worker is frozen while it claims", frozenAt("keyline.claim(", 1, 0, ofTransaction...)},
	{"42e", "a worker is frozen while it loads", frozenAt("keyline.load_record(", 1, 0, beforeStatement, duringReply)},                               // in no transaction
	{"42f", "a worker is frozen while it flushes", frozenAt("keyline.flush(", 1, 1, ofTransaction...)},                                               // the first may do no more than make tx's row
	{"42g", "a worker is frozen while it loads several", frozenAt("-- The claimed records themselves", 4, 0, append(ofTransaction, duringReply)...)}, // more than are claimed by name
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

// asleep counts the two locks of the sentinel.
const asleep = `select count(*) from pg_locks where locktype = 'advisory' and mode = 'ExclusiveLock' and granted
	and database = (select oid from pg_database where datname = current_database())`

// ofTransaction are the steps of one that consists of one statement.
var ofTransaction = []step{beforeStatement, beforeCommit, beforeReply}

// frozenAt freezes a worker with a call of the runtime's own at each of
// the steps, whose bytes are on their way and go on: what it has sent is carried out, and what
// it is sent it does not read, which is more than fits into any buffer.
func frozenAt(marker string, records, skip int, steps ...step) func(*stage) {
	return func(t *stage) {
		t.open()
		pad := strings.Repeat("x", 900_000)
		for i, at := range steps {
			p, url := t.newProxy()
			r := fmt.Sprintf("r%d", i)
			w := t.start(spec{Name: fmt.Sprintf("frozen%d", i), URL: url, ListenURL: t.url(), Consumers: []string{"a", "tx"},
				Config: keyline.Config{PollInterval: time.Hour}})
			// A look that finds nothing is not to fall into the trap.
			t.eventually("it sleeps as sentinel", 20*time.Second, func() bool { return t.number(asleep) == 2 })
			t.pause(500 * time.Millisecond)
			trap := p.setTrap(&trap{marker: marker, at: at, skip: skip}, false)
			tx := t.begin()
			const big = 12
			for j := range big {
				t.appendIn(tx, fmt.Sprintf("%s.%d", r, j%records), do{"pad": pad})
			}
			t.must(tx.Commit(t.ctx), "commit")
			if !trap.holds(t, 20*time.Second) {
				t.fatal("it does not come to %s, %s", marker, at)
			}
			w.signal(syscall.SIGSTOP)
			trap.release()
			began := t.house.clock.Mono()
			limit, end := context.WithTimeout(t.ctx, 10*time.Second)
			for range 5 {
				if _, err := t.client.Append(limit, t.pool, event(r+".0", nil)); err != nil {
					t.fatal("an append beside a worker that is frozen %s: %v", at, err)
				}
			}
			end()
			if d := t.house.clock.Mono() - began; d > 2*time.Second {
				t.fail("5 appends beside a worker that is frozen %s took %s", at, d)
			}
			holds := "select count(*) from keyline.mailboxes m join keyline.workers w on w.id = m.claimed_by where w.name = $1"
			if !t.within(time.Second, func() bool { return t.number(holds, fmt.Sprintf("frozen%d", i)) == records }) {
				t.fatal("a worker that is frozen %s holds %d of %d records: nothing was tested", at, t.number(holds, fmt.Sprintf("frozen%d", i)), records)
			}
			other := t.start(spec{Name: fmt.Sprintf("other%d", i), Consumers: []string{"a", "tx"}})
			n := fmt.Sprintf("n%d", i)
			t.append(n, nil)
			t.awaitDone(n, 2, 5*time.Second) // whoever else there is does not wait for it
			events := big + 5
			t.awaitDone(r+".%", 2*events, 40*time.Second)
			w.signal(syscall.SIGCONT)
			t.append(r+".0", nil)
			t.awaitDone(r+".%", 2*(events+1), 20*time.Second)
			for _, gone := range []*worker{w, other} {
				gone.signal(syscall.SIGTERM)
				if !gone.ended(40 * time.Second) {
					t.fatal("a worker does not stop")
				}
			}
		}
		t.check(allow{duplicates: 6, overlaps: true}) // what ran when it froze ends when it goes on
	}
}
