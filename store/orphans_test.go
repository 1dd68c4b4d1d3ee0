package store

import (
	"testing"

	"github.com/keylinehq/keyline/internal/core"
)

// age makes all claims old enough for the orphan search.
func (r *rig) age() {
	r.Helper()
	r.exec("update keyline.mailboxes set claimed_at = claimed_at - interval '1 minute' where claimed_at is not null")
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

// A claim that was made more than a second after the search had read the clock is not one of before the clock was set
// back. (The time set here is the latest that an honest one may have.)
func TestAnOrphanSearchThatIsHeldUpKeepsWhatIsClaimedMeanwhile(t *testing.T) {
	r := newRig(t)
	id := r.append("r")
	r.claimOne(id)
	r.overtaken("hand_back_orphans", "mailboxes", func() error {
		_, err := r.HandBackOrphans(t.Context(), r.me, nil)
		return err
	}, "update keyline.mailboxes set claimed_at = clock_timestamp() + interval '1 second'")
	if got := r.mailbox(id); got != "claimed" {
		t.Errorf("mailbox %q", got)
	}
}
