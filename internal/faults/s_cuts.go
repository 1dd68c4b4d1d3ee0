package main

import (
	"fmt"
	"time"

	"github.com/keylinehq/keyline"
)

var cuts = []scenario{
	{"14a", "the reply to a flush's COMMIT is lost", cutAt("keyline.flush(", []string{"a", "b"})},
	{"14b", "every connection is cut, again and again", cutAllTheTime},
	{"48a", "the reply to a claim's COMMIT is lost", cutAt("keyline.claim(", []string{"a", "tx"})},
	{"48b", "the reply to HandleTx's COMMIT is lost", cutAt("keyline.hold(", []string{"a", "tx"})},
}

// cutAt loses the replies to five commits of one kind under load.
func cutAt(marker string, consumers []string) func(*stage) {
	return func(t *stage) {
		t.open()
		p, url := t.newProxy()
		t.start(spec{Name: "w1", URL: url, Consumers: consumers})
		for i := range 5 {
			p.cutAfterCommit(marker, 1)
			for j := range 12 {
				t.append(fmt.Sprintf("r%d", j%4), nil)
			}
			t.append(fmt.Sprintf("fail%d", i), do{"first": 2, "only": consumers[1]})
			t.eventually("the reply is lost", 20*time.Second, func() bool { return p.cutsMade() > i })
			t.pause(200 * time.Millisecond)
		}
		t.awaitDone("r%", 120, 60*time.Second)
		t.fixFailures()
		t.check(allow{dead: 0})
		t.countsMatch()
	}
}

// fixFailures is a place to wait until nothing fails any more: events of this
// suite that fail do so for a number of attempts.
func (t *stage) fixFailures() {
	t.eventually("failed deliveries succeed", 60*time.Second, func() bool {
		return t.try("select count(*) from keyline.checkpoints where state = 'backoff'") == 0
	})
}

// countsMatch: nothing was counted twice.
func (t *stage) countsMatch() {
	counted := t.number("select coalesce(sum(completed), 0) from keyline.consumer_health h join keyline.consumers c on c.id = h.consumer_id where c.name not like 'tx%'")
	done := t.number("select count(*) from crm.delivered_log where mark = 'done' and consumer not like 'tx%'")
	t.found["counted"] = counted
	if counted != done {
		t.fail("%d deliveries counted, %d made", counted, done)
	}
}

func cutAllTheTime(t *stage) {
	t.open()
	p, url := t.newProxy()
	t.start(spec{Name: "w1", URL: url})
	t.start(spec{Name: "w2", URL: url, Config: keyline.Config{PollInterval: 300 * time.Millisecond}})
	for i := range 25 {
		for j := range 10 {
			t.append(fmt.Sprintf("r%d", (i+j)%13), nil)
		}
		p.cutAll()
		t.pause(150 * time.Millisecond)
	}
	t.awaitDone("r%", 750, 60*time.Second)
	// Where connecting takes longer than the pause between two cuts, a worker loses its lease, and with it what it could not
	// write: of each record the window of both consumers that are not transactional.
	lost := t.number("select count(*) from keyline.workers where status <> 'live'")
	t.found["workers_lost"] = lost
	t.check(allow{duplicates: int64(lost * 13 * 2), overlaps: lost > 0})
}
