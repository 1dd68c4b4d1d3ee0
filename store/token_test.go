package store

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/keylinehq/keyline/internal/core"
)

// lose marks a worker as lost, as an observer does that saw the same beat for a whole lease.
func (r *rig) lose(worker int64) {
	r.Helper()
	beat := get[int64](r, "select beat from keyline.workers where id = $1", worker)
	// Not through MarkLost: it would end the sessions of this process.
	r.exec("update keyline.workers set status = 'lost', ended_at = clock_timestamp() where id = $1 and beat = $2", worker, beat)
}

func TestTokensOnlyEverGrow(t *testing.T) {
	r := newRig(t)
	id := r.append("r")
	last := r.box(id).token
	grown := func(what string) {
		t.Helper()
		now := r.box(id).token
		if now <= last {
			t.Errorf("%s: token %d after %d", what, now, last)
		}
		last = now
	}
	c := r.claimOne(id)
	grown("claim")
	r.flush1(core.Flush{Record: id, Token: c.Token, Head: 1, Then: core.Release})
	grown("release")
	c = r.claimOne(id)
	grown("second claim")
	r.flush1(core.Flush{Record: id, Token: c.Token, Head: 1, Then: core.HandBack})
	grown("hand-back")
	r.claimOne(id)
	grown("third claim")
	r.age()
	if n, err := r.HandBackOrphans(t.Context(), r.me, nil); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	grown("orphan search")
	r.claimOne(id)
	grown("fourth claim")
	if err := r.Leave(t.Context(), r.me); err != nil {
		t.Fatal(err)
	}
	if n, err := r.Recover(t.Context()); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	grown("recovery")
}

func TestWantedWorkIsNotClaimedBeforeItIsDue(t *testing.T) {
	r := newRig(t)
	id := r.append("r")
	c := r.claimOne(id)
	r.flush1(core.Flush{Record: id, Token: c.Token, Head: 1, Then: core.HandBack, Wants: []int32{7}, WantsDueAt: r.clock.Now().Add(time.Hour)})
	if got := r.claims(r.me, 10, 7); len(got) != 0 {
		t.Errorf("claimed an hour early: %v", got)
	}
	d, ok, err := r.NextDue(t.Context(), []int32{7})
	if !ok || err != nil || d < 50*time.Minute || d > time.Hour {
		t.Errorf("due in %v, %v, %v", d, ok, err)
	}
}

func TestAnAppendToAClaimedRecordWaitsForNobodyAndWakesNobody(t *testing.T) {
	r := newRig(t)
	for name, due := range map[string]string{"due": "-1 hour", "named by a wake before it was due": "1 hour"} {
		t.Run(name, func(t *testing.T) {
			r := r.sub(t)
			id := r.append(name)
			r.exec("update keyline.mailboxes set due_at = clock_timestamp() + $2::text::interval where record_id = $1", id, due)
			c := r.claimOne(id)
			before := r.box(id)
			hears, wake := r.sleeper()
			defer wake()
			// A HandleTx of the holder is open.
			handling := r.begin()
			r.in(handling, "select keyline.hold($1, $2, $3)", id, r.me, c.Token)
			if err := soon(r, background(func() error { return appendRaw(t.Context(), r.pool, name) }), "the append"); err != nil {
				t.Fatal(err)
			}
			r.rollbackTx(handling)
			after := r.box(id)
			before.dueIn, after.dueIn = 0, 0
			if fmt.Sprint(before) != fmt.Sprint(after) {
				t.Errorf("%+v became %+v", before, after)
			}
			hears(itoa(r.append("other " + name))) // and nothing before it
		})
	}
}

// The holder reckons the database's time, and may be a little ahead of it; what
// it calls due now would otherwise be nobody's business until a poll.
func TestWorkThatAHolderCallsDueNowWakes(t *testing.T) {
	r := newRig(t)
	sleeper := r.db.Connect()
	for _, sql := range []string{"listen keyline_wake", "select pg_advisory_lock(keyline.arm_key())"} {
		if _, err := sleeper.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	ahead := func() time.Time { return get[time.Time](r, "select clock_timestamp()").Add(2 * time.Millisecond) }
	var wakes []string
	for name, f := range map[string]core.Flush{
		"hand-back": {Then: core.HandBack, DueAt: ahead()}, "release": {Then: core.Release}, "wanted": {Then: core.HandBack, Wants: []int32{7}, WantsDueAt: ahead()},
	} {
		id := r.append(name)
		if _, err := sleeper.WaitForNotification(t.Context()); err != nil { // the append's
			t.Fatal(err)
		}
		f.Record, f.Token, f.Head = id, r.claimOne(id).Token, 1
		if res := r.flush1(f); res.Status != core.FlushGone {
			t.Fatalf("%s: %+v", name, res)
		}
		n, err := sleeper.WaitForNotification(t.Context())
		if err != nil {
			t.Fatalf("%s wakes nobody: %v", name, err)
		}
		wakes = append(wakes, n.Payload)
	}
	if len(wakes) != 3 || !slices.ContainsFunc(wakes, func(s string) bool { return len(s) > 6 && s[:6] == "wants:" }) {
		t.Errorf("wakes: %q", wakes)
	}
}
