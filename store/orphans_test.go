package store

import (
	"slices"
	"testing"

	"github.com/keylinehq/keyline/internal/core"
)

// age makes all claims old enough for the orphan search.
func (r *rig) age() {
	r.Helper()
	r.exec("update keyline.mailboxes set claimed_at = claimed_at - interval '1 minute' where claimed_at is not null")
}

// A claim's answer may be lost with its connection: then the database says that
// this worker has a record, and nothing in the worker knows of it.
func TestOrphanSearchFreesWhatIsNotHeldAndNothingElse(t *testing.T) {
	r := newRig(t)
	other := on(t, r.db)
	held, orphan, reclaimed, others := r.append("held"), r.append("orphan"), r.append("reclaimed"), r.append("other's")
	var list []core.Held
	keep := r.claimOne(held)
	list = append(list, core.Held{Record: held, Token: keep.Token})
	lost := r.claimOne(orphan)
	// Held by an actor that has lost it since, and claimed anew by a call whose answer was lost.
	stale := r.claimOne(reclaimed)
	list = append(list, core.Held{Record: reclaimed, Token: stale.Token})
	r.flush1(core.Flush{Record: reclaimed, Token: stale.Token, Head: 1, Then: core.Release})
	again := r.claimOne(reclaimed)
	theirs := other.claimOne(others)
	r.age()
	young := r.append("young")
	fresh := r.claimOne(young) // its answer may be on its way

	n, err := r.HandBackOrphans(t.Context(), r.me, list)
	if n != 2 || err != nil {
		t.Fatalf("freed %d, %v", n, err)
	}
	for id, token := range map[int64]int64{held: keep.Token, others: theirs.Token, young: fresh.Token} {
		if b := r.box(id); b.claimedBy == 0 || b.token != token {
			t.Errorf("record %d was freed: %+v", id, b)
		}
	}
	for id, token := range map[int64]int64{orphan: lost.Token, reclaimed: again.Token} {
		b := r.box(id)
		if b.claimedBy != 0 || b.token <= token || !b.due {
			t.Errorf("record %d was not freed: %+v", id, b)
		}
		if b.crashes != 0 || !b.unclean {
			t.Errorf("record %d: a lost answer is no crash, but what ran is not known: %+v", id, b)
		}
	}
	if n, err := r.HandBackOrphans(t.Context(), r.me, list); n != 0 || err != nil {
		t.Errorf("again: freed %d, %v", n, err)
	}
	var got []int64
	for _, c := range other.claims(other.me, 10) {
		got = append(got, c.Record)
	}
	slices.Sort(got)
	if want := []int64{orphan, reclaimed}; !slices.Equal(got, want) {
		t.Errorf("then another claims %v, want %v", got, want)
	}
}

func TestOrphanSearchGivesBackAttemptsWrittenAhead(t *testing.T) {
	r := newRig(t)
	c := r.register(definition("c"))
	id := r.append("r")
	r.claimOne(id)
	r.started(id, c)
	r.age()
	if n, err := r.HandBackOrphans(t.Context(), r.me, nil); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if row := r.row(id, c); row.State != core.Ready || row.Attempt != 3 || row.Granted != 2 {
		t.Errorf("row %+v", row)
	}
	if got := get[string](r, "select granted || ' ' || started from keyline.dead_letters"); got != "5 false" {
		t.Errorf("dead letter: %s", got)
	}
}

// Neither waits for a mailbox that somebody has locked; the next call finds it.
func TestOrphanSearchAndRecoveryPassLockedMailboxesOver(t *testing.T) {
	r := newRig(t)
	locked, free := r.append("locked"), r.append("free")
	r.claimOne(locked)
	r.claimOne(free)
	r.age()
	tx := r.begin()
	r.in(tx, "select from keyline.mailboxes where record_id = $1 for no key update", locked)
	if n, err := r.HandBackOrphans(t.Context(), r.me, nil); n != 1 || err != nil {
		t.Errorf("orphan search frees %d, %v", n, err)
	}
	r.claimOne(free)
	r.lose(r.me)
	if n, err := r.Recover(t.Context()); n != 1 || err != nil {
		t.Errorf("recovery frees %d, %v", n, err)
	}
	r.rollbackTx(tx)
	if n, err := r.Recover(t.Context()); n != 1 || err != nil {
		t.Errorf("then recovery frees %d, %v", n, err)
	}
	if n := r.count("mailboxes", "claimed_by is not null"); n != 0 {
		t.Errorf("%d are still claimed", n)
	}
}
