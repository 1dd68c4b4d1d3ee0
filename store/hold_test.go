package store

import (
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
	r.commitTx(tx)
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
