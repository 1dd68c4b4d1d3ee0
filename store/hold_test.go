package store

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/core"
)

// A wake may name a record whose earlier holder's HandleTx has not ended yet.
func TestARecordNamedInAWakeIsPassedOverUnderAnOpenHandleTx(t *testing.T) {
	r := newRig(t)
	id := r.append("r")
	c := r.claimOne(id)
	tx := r.begin()
	r.in(tx, "select keyline.hold($1, $2, $3)", id, r.me, c.Token)
	if res := r.flush1(core.Flush{Record: id, Token: c.Token, Head: 1, Then: core.Release}); res.Status != core.FlushGone {
		t.Fatalf("%+v", res)
	}
	named := core.ClaimRequest{Worker: r.me, Limit: 1, Record: id}
	if got, err := r.Claim(t.Context(), named); len(got) != 0 || err != nil {
		t.Errorf("claimed under the hold: %v, %v", got, err)
	}
	r.commit(tx)
	if got, err := r.Claim(t.Context(), named); len(got) != 1 || err != nil {
		t.Errorf("after it: claimed %v, %v", got, err)
	}
}

// A claim that is lost, or another worker's, cannot be held.
func TestOnlyTheHolderCanHoldAClaim(t *testing.T) {
	r := newRig(t)
	id := r.append("r")
	c := r.claimOne(id)
	for name, args := range map[string][]any{
		"another token":  {id, r.me, c.Token - 1},
		"another worker": {id, r.me + 1, c.Token},
		"another record": {id + 1, r.me, c.Token},
	} {
		if _, err := r.pool.Exec(t.Context(), "select keyline.hold($1, $2, $3)", args...); sqlState(err) != stateClaimLost {
			t.Errorf("%s: %v", name, err)
		}
	}
	r.exec("select keyline.hold($1, $2, $3)", id, r.me, c.Token)
}

func TestAClaimTakesNoMoreThanItMayOfDueAndWantedWorkTogether(t *testing.T) {
	r := newRig(t)
	past := r.clock.Now().Add(-time.Minute)
	for i := range 5 {
		id := r.append("wanted" + keyOf(i))
		c := r.claimOne(id)
		r.flush1(core.Flush{Record: id, Token: c.Token, Head: 1, Then: core.HandBack, Wants: []int32{7}, WantsDueAt: past})
	}
	r.append("due")
	var all []int64
	for _, want := range []int{3, 3, 0} {
		got := r.claims(r.me, 3, 7)
		if len(got) != want {
			t.Errorf("claimed %v, want %d", got, want)
		}
		for _, c := range got {
			all = append(all, c.Record)
		}
		if len(all) == 3 && r.mailbox(r.record("due")) != "claimed" {
			t.Error("what is due for everybody comes first")
		}
	}
}

// A wake names one record, perhaps in the middle of the queue; what was due before it
// is still to be found.
func TestAClaimByNameDoesNotMoveTheLowerBound(t *testing.T) {
	fake := clock.NewFake(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	r := newRig(t, func(c *Config) { c.Clock = fake })
	for i := range 20 {
		r.append(keyOf(i))
	}
	r.claims(r.me, 2)               // a look at everything, which sets the bound
	r.claimOne(r.record(keyOf(10))) // enough are due after it to fill the next claim
	early := r.record(keyOf(2))
	got, err := r.Claim(t.Context(), core.ClaimRequest{Worker: r.me, Limit: 3})
	if err != nil || len(got) != 3 {
		t.Fatal(got, err)
	}
	if !slices.ContainsFunc(got, func(c core.Claim) bool { return c.Record == early }) {
		t.Errorf("claimed %v, and not %d, which was due first", got, early)
	}
}

// Promise: the server's timeline is asked for once in a session; that it could not be told is not remembered, as a
// standby tells it after its promotion.
func TestASessionRemembersTheTimelineButNotThatThereWasNone(t *testing.T) {
	r := newRig(t)
	want := get[int64](r, "select timeline_id from pg_control_checkpoint()")
	conn := r.db.Connect()
	read := func() (n int64) {
		if err := conn.QueryRow(t.Context(), "select keyline.timeline()").Scan(&n); err != nil {
			t.Error(err)
		}
		return n
	}
	role := "keyline_unprivileged_" + r.db.Name
	r.exec("create role " + role)
	t.Cleanup(func() {
		if _, err := r.pool.Exec(context.Background(), "drop owned by "+role+"; drop role "+role); err != nil {
			t.Error(err)
		}
	})
	r.exec("grant usage on schema keyline to " + role)
	r.exec("revoke execute on function pg_walfile_name from public")
	if _, err := conn.Exec(t.Context(), "set role "+role); err != nil {
		t.Fatal(err)
	}
	if n := read(); n != 0 {
		t.Errorf("not told, it is %d", n)
	}
	r.exec("grant execute on function pg_walfile_name to public")
	if n := read(); n != want {
		t.Errorf("told, it is %d, want %d", n, want)
	}
	r.exec("revoke execute on function pg_walfile_name from public")
	if n := read(); n != want {
		t.Errorf("told before, it is %d, want %d", n, want)
	}
}
