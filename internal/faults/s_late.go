package main

import (
	"fmt"
	"net/url"
	"syscall"
	"time"

	"github.com/keylinehq/keyline"
)

var late = []scenario{
	{"37", "a claim commits after its worker was marked lost", lateClaim},
	{"39", "a hand-back is repeated after others went on", repeatedHandBack},
}

// lateClaim holds the COMMIT of a claim in the server, where its worker's
// sessions cannot be ended: the workers have two roles, of which one has no right to that.
func lateClaim(t *stage) {
	t.open()
	role := "lesser_" + t.name
	t.exec(`create role ` + role + ` login;
		grant usage on schema keyline, crm, faults to ` + role + `;
		grant all on all tables in schema keyline, crm, faults to ` + role + `;
		grant all on all sequences in schema keyline, crm, faults to ` + role + `;
		grant execute on all functions in schema keyline to ` + role + `;
		create function faults.late() returns trigger language plpgsql as $$ begin
			perform pg_advisory_xact_lock_shared(37);
			insert into faults.gates values ('claimed by ' || new.claimed_by) on conflict do nothing;
			return null;
		end $$;
		create constraint trigger late after update on keyline.mailboxes deferrable initially deferred for each row
			when (old.claimed_by is null and new.claimed_by is not null) execute function faults.late()`)
	t.onEnd(func() { _, _ = t.pool.Exec(t.ctx, "drop owned by "+role+"; drop role "+role) })
	gate := t.connect()
	_, err := gate.Exec(t.ctx, "select pg_advisory_lock(37)")
	t.must(err, "lock")
	w := t.start(spec{Name: "w1", Consumers: []string{"a", "tx"}})
	t.append("r", nil)
	var pid int
	held := "select coalesce(max(pid), 0) from pg_stat_activity where datname = current_database() and application_name like 'keyline %' and wait_event = 'advisory' and query = 'commit'"
	t.eventually("the claim's COMMIT is held", 20*time.Second, func() bool { pid = t.number(held); return pid != 0 })
	w.signal(syscall.SIGSTOP)
	u, err := url.Parse(t.url())
	t.must(err, "read a URL")
	u.User = url.User(role)
	t.start(spec{Name: "w2", URL: u.String(), Consumers: []string{"a", "tx"}})
	t.eventually("its worker is lost", 30*time.Second, func() bool {
		return t.number("select count(*) from keyline.workers where name = 'w1' and status = 'lost'") == 1
	})
	t.pause(3 * time.Second) // whoever recovers has done so
	if t.number(held) != pid {
		t.fatal("the claim has ended with its worker: nothing was tested")
	}
	if n := t.number("select count(*) from keyline.mailboxes where claimed_by is not null"); n != 0 {
		t.fatal("%d claims before the COMMIT", n)
	}
	_, err = gate.Exec(t.ctx, "select pg_advisory_unlock(37)")
	t.must(err, "unlock")
	t.awaitDone("r", 2, 15*time.Second)
	if n := t.number("select count(*) from faults.gates g join keyline.workers w on g.name = 'claimed by ' || w.id where w.status = 'lost'"); n != 1 {
		t.fail("the claim's COMMIT did not go through: nothing was tested")
	}
	w.signal(syscall.SIGCONT)
	t.append("r", nil)
	t.awaitDone("r", 4, 20*time.Second)
	t.check(allow{})
}

// repeatedHandBack loses the reply to a hand-back, keeps the worker away from the
// database until an append, another worker and an operator have made something else of
// the record, and lets it repeat itself.
func repeatedHandBack(t *stage) {
	t.open()
	p, proxied := t.newProxy()
	t.start(spec{Name: "w1", URL: proxied, ListenURL: t.url(), Consumers: []string{"a", "b"}, Delay: time.Hour, Attempts: 3, Config: keyline.Config{Lease: 5 * time.Minute}})
	const flush = "keyline.flush("
	rounds := 0
	for i := range 6 {
		r := fmt.Sprintf("r%d", i)
		trap := p.setTrap(&trap{marker: flush, at: beforeReply, skip: i % 3, cut: true}, false)
		id := t.appendType(r, "fault.staged", do{"first": 1, "only": "a"})
		caught := trap.holds(t, 2*time.Second)
		p.unset()
		if caught {
			p.refuseNew(true)
			p.cutAll()
			trap.release()
		}
		caught = caught && t.number(`select count(*) from keyline.mailboxes m join keyline.records r on r.id = m.record_id
			where r.record_key = $1 and m.claimed_by is null and m.due_at > clock_timestamp() + interval '30 minutes'`, r) == 1
		if !caught { // that was another flush of the record, or it did not take as many
			p.refuseNew(false)
			t.eventually("it goes back", 20*time.Second, func() bool {
				return len(t.dueTimes()) > 0 && t.number("select count(*) from keyline.mailboxes where claimed_by is not null") == 0
			})
			_, err := t.operator().RetryConsumer(t.ctx, id, "a", "")
			t.must(err, "retry")
			t.awaitDone(r, 2, 20*time.Second)
			continue
		}
		rounds++
		w2 := t.start(spec{Name: fmt.Sprintf("other%d", i), Consumers: []string{"a", "b"}, Delay: time.Hour, Attempts: 3})
		t.append(r, nil)
		t.eventually("the sibling gets an event that came meanwhile", 5*time.Second, func() bool { return t.order(r, "b") == "1 2" })
		_, err := t.operator().RetryConsumer(t.ctx, id, "a", "")
		t.must(err, "retry")
		t.awaitDone(r, 4, 20*time.Second)
		// Somebody else holds it when the repetition comes.
		t.append(r, do{"gate": r, "only": "b"})
		t.eventually("the next event runs", 20*time.Second, func() bool { return t.number(begun+" and consumer = 'b'", r, 3) == 1 })
		p.count(flush)
		p.refuseNew(false)
		t.eventually("the hand-back is repeated", 30*time.Second, func() bool { return p.counted(flush) > 0 })
		t.pause(500 * time.Millisecond)
		if t.number("select count(*) from keyline.mailboxes where claimed_by is not null") != 1 || t.number("select count(*) from keyline.checkpoints where state <> 'ready'") != 0 {
			t.fail("the repeated hand-back of %s has undone what happened since", r)
		}
		t.gate(r)
		t.awaitDone(r, 6, 10*time.Second)
		w2.signal(syscall.SIGTERM)
		if !w2.ended(40 * time.Second) {
			t.fatal("a worker does not stop")
		}
	}
	if t.found["hand_backs_repeated"] = rounds; rounds == 0 {
		t.fail("no hand-back was caught")
	}
	t.check(allow{})
}
