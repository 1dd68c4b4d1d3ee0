package store

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

func TestTwoWorkersNeverClaimTheSameRecord(t *testing.T) {
	r := newRig(t)
	other := on(t, r.db)
	const records = 3000
	if err := r.BareSeed(t.Context(), "r", records, 1); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	owners := map[int64]int64{}
	tokens := map[int64]bool{}
	var wg sync.WaitGroup
	for _, w := range []*rig{r, r, other, other} {
		wg.Go(func() {
			for {
				claims, err := w.Claim(t.Context(), core.ClaimRequest{Worker: w.me, Limit: 37})
				if err != nil || len(claims) == 0 {
					if err != nil {
						t.Error(err)
					}
					return
				}
				mu.Lock()
				for _, c := range claims {
					if prior, ok := owners[c.Record]; ok {
						t.Errorf("record %d claimed by %d and %d", c.Record, prior, w.me)
					}
					if tokens[c.Token] {
						t.Errorf("token %d given twice", c.Token)
					}
					owners[c.Record], tokens[c.Token] = w.me, true
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(owners) != records {
		t.Errorf("%d of %d claimed", len(owners), records)
	}
	for record, owner := range owners {
		if got := get[int64](r, "select claimed_by from keyline.mailboxes where record_id = $1", record); got != owner {
			t.Fatalf("record %d is claimed by %d, not %d", record, got, owner)
		}
		break // the database's word on one is enough: all came from it
	}
}

func TestClaimsComeInDueOrderAndNotEarly(t *testing.T) {
	r := newRig(t)
	var ids []int64
	for i := range 5 {
		id := r.append(keyOf(i))
		r.exec("update keyline.mailboxes set due_at = clock_timestamp() - $2 * interval '1 minute' where record_id = $1", id, i)
		ids = append(ids, id)
	}
	later := r.append("later")
	r.exec("update keyline.mailboxes set due_at = clock_timestamp() + interval '1 hour' where record_id = $1", later)
	var got []int64
	for range 3 {
		for _, c := range r.claims(r.me, 2) {
			got = append(got, c.Record)
		}
	}
	for i := 0; i < len(got); i += 2 { // within one call the order says nothing
		slices.Sort(got[i:min(i+2, len(got))])
	}
	if want := []int64{ids[3], ids[4], ids[1], ids[2], ids[0]}; !slices.Equal(got, want) {
		t.Errorf("claimed %v, want %v", got, want)
	}
	d, ok, err := r.NextDue(t.Context(), nil)
	if err != nil || !ok || d < 50*time.Minute || d > time.Hour {
		t.Errorf("next due in %v, %v, %v", d, ok, err)
	}
}

func TestOnlyAHostClaimsWhatWantsAConsumer(t *testing.T) {
	r := newRig(t)
	id := r.append("r")
	c := r.claimOne(id)
	past := r.clock.Now().Add(-time.Minute)
	res := r.flush1(core.Flush{Record: id, Token: c.Token, Head: 1, Then: core.HandBack, Wants: []int32{7, 8}, WantsDueAt: past})
	if res.Status != core.FlushGone || r.mailbox(id) != "held" {
		t.Fatalf("%+v, mailbox %q", res, r.mailbox(id))
	}
	if got := r.claims(r.me, 10, 1, 2); len(got) != 0 {
		t.Errorf("claimed by who hosts none of them: %v", got)
	}
	if _, ok, err := r.NextDue(t.Context(), []int32{1, 2}); ok || err != nil {
		t.Errorf("due for who hosts none of them: %v, %v", ok, err)
	}
	if d, ok, err := r.NextDue(t.Context(), []int32{8}); !ok || d != 0 || err != nil {
		t.Errorf("not due for its host: %v, %v, %v", d, ok, err)
	}
	if got := r.claims(r.me, 10, 1, 8); len(got) != 1 || got[0].Record != id {
		t.Errorf("claimed by a host: %v", got)
	}
	if wants := get[*int](r, "select cardinality(wants) from keyline.mailboxes where record_id = $1", id); wants != nil {
		t.Errorf("a claimed record wants %d", *wants)
	}
}

func TestAnAppendClearsWhatARecordWants(t *testing.T) {
	r := newRig(t)
	id := r.append("r")
	c := r.claimOne(id)
	r.flush1(core.Flush{Record: id, Token: c.Token, Head: 1, Then: core.HandBack, Wants: []int32{7}, WantsDueAt: r.clock.Now().Add(time.Hour)})
	r.append("r")
	if got := r.claims(r.me, 10, 1); len(got) != 1 {
		t.Errorf("an event that may concern everybody: claimed %v", got)
	}
}

func TestARecordNamedInAWakeIsClaimedDueOrNotOnce(t *testing.T) {
	r := newRig(t)
	id := r.append("r")
	r.exec("update keyline.mailboxes set due_at = clock_timestamp() + interval '1 hour'")
	first := r.claimOne(id)
	if first.Token == 0 || first.Crashes != 0 || first.Unclean {
		t.Errorf("%+v", first)
	}
	again, err := r.Claim(t.Context(), core.ClaimRequest{Worker: r.me, Limit: 1, Record: id})
	if err != nil || len(again) != 0 {
		t.Errorf("claimed twice: %v, %v", again, err)
	}
	none, err := r.Claim(t.Context(), core.ClaimRequest{Worker: r.me, Limit: 1, Record: 12345})
	if err != nil || len(none) != 0 {
		t.Errorf("no such record: %v, %v", none, err)
	}
}

func TestAWorkerThatIsNotLiveClaimsNothing(t *testing.T) {
	r := newRig(t)
	id := r.append("r")
	if err := r.Leave(t.Context(), r.me); err != nil {
		t.Fatal(err)
	}
	for _, worker := range []int64{r.me, 999} {
		if _, err := r.Claim(t.Context(), core.ClaimRequest{Worker: worker, Limit: 1}); !errors.Is(err, keylinetype.ErrFenced) {
			t.Errorf("worker %d: %v", worker, err)
		}
	}
	if r.mailbox(id) != "due" {
		t.Error("claimed all the same")
	}
}

// A failover is staged by its one mark: a server on another timeline.
func TestAfterAFailoverEveryWorkerJoinsAnewAndTokensJump(t *testing.T) {
	r := newRig(t)
	before := r.claimOne(r.append("r"))
	r.exec("create or replace function keyline.timeline() returns integer language sql return 2")
	r.append("s")
	if _, err := r.Claim(t.Context(), core.ClaimRequest{Worker: r.me, Limit: 1}); !errors.Is(err, keylinetype.ErrFenced) {
		t.Errorf("a claim of a worker from before: %v", err)
	}
	if err := r.Renew(t.Context(), r.me, nil); !errors.Is(err, keylinetype.ErrFenced) {
		t.Errorf("a renewal: %v", err)
	}
	again, third := r.join("again"), r.join("third")
	first := r.claims(again, 1)
	if len(first) != 1 || first[0].Token < before.Token+1_000_000_000 {
		t.Errorf("claimed %+v after token %d", first, before.Token)
	}
	r.append("t")
	if next := r.claims(third, 1); len(next) != 1 || next[0].Token > first[0].Token+10 {
		t.Errorf("the tokens jumped twice: %+v, %+v", first, next)
	}
	if err := r.Renew(t.Context(), again, nil); err != nil {
		t.Error(err)
	}
}

// Promise: what a worker has from before a failover is not written down, be its claims among what was not lost: it may be about events
// that are, whose seqs others get. It reads the registry anew, whatever became of that, and its consumers are there again.
func TestNothingFromBeforeAFailoverIsWritten(t *testing.T) {
	x := newTxRig(t)
	r := x.rig
	plain := r.register(definition("plain"))
	l := r.load(r.claimOne(r.append("s", "t", "t")))
	epoch := r.epoch()
	r.exec("create or replace function keyline.timeline() returns integer language sql return 2")
	f := core.Flush{Record: l.Record, Token: l.Token, Head: 9, Cursor: 9, Upserts: []core.Checkpoint{{Consumer: plain, Seq: 9, State: core.Ready}}}
	if res := r.flush1(f); res.Status != core.FlushFenced {
		t.Errorf("a flush: %+v", res)
	}
	if b := r.box(l.Record); b.cursor != 0 || b.claimedBy != r.me {
		t.Errorf("it was written: %+v", b)
	}
	if out := x.run(effect(1)); !out.Fenced || x.effects() != 0 {
		t.Errorf("HandleTx: %+v, %d effects", out, x.effects())
	}
	r.exec("delete from keyline.consumers where name = 'plain'") // its registration was among what was lost
	r.join("again")
	if now := r.epoch(); now < epoch+1_000_000 {
		t.Errorf("the epoch is %d, and was %d: one that was seen could come again", now, epoch)
	}
	if n := get[int64](r, "select count(*) from keyline.consumers where name = 'plain'"); n != 1 {
		t.Error("its consumer is not there again")
	}
}

func TestTheLowerBoundNeverHidesWork(t *testing.T) {
	fake := clock.NewFake(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	r := newRig(t, func(c *Config) { c.Clock = fake })
	tx, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	r.appendOn(tx, "early", "t") // its due time is before the others', its commit after
	for i := range 30 {
		r.append(keyOf(i))
	}
	bounded := func(limit int) []core.Claim {
		claims, err := r.Claim(t.Context(), core.ClaimRequest{Worker: r.me, Limit: limit})
		if err != nil {
			t.Fatal(err)
		}
		return claims
	}
	if n := len(bounded(10)); n != 10 {
		t.Fatalf("%d claimed", n)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	early := r.record("early")
	isEarly := func(c core.Claim) bool { return c.Record == early }

	if got := bounded(5); len(got) != 5 || slices.ContainsFunc(got, isEarly) {
		t.Fatalf("the bound skips nothing: %v", got) // else the rest of this test says nothing
	}
	fake.Advance(unboundedEvery)
	if got := bounded(5); !slices.ContainsFunc(got, isEarly) {
		t.Errorf("after a second the early one is not among %v", got)
	}
}

// Promise: where a look at everything takes long, it comes so much more seldom, within bounds.
func TestALongLookAtEverythingComesSeldom(t *testing.T) {
	fake := clock.NewFake(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	due := fake.Now()
	for took, every := range map[time.Duration]time.Duration{
		0: unboundedEvery, time.Millisecond: unboundedEvery, 40 * time.Millisecond: 40 * unboundedShare * time.Millisecond, time.Minute: unboundedRare,
	} {
		b := lowerBound{clock: fake}
		b.from(true)
		b.took(took)
		b.passed(due)
		fake.Advance(every - 1)
		if from := b.from(false); !from.Equal(due) {
			t.Errorf("a look of %v comes again before %v", took, every)
		}
		fake.Advance(1)
		if from := b.from(false); !from.IsZero() {
			t.Errorf("a look of %v does not come again after %v", took, every)
		}
	}
}

// Promise: at full load claims begin where those of other workers have come to,
// and one that looks at everything finds what lies before that.
func TestClaimsBeginWhereOthersHaveComeTo(t *testing.T) {
	r := newRig(t)
	for i := range 30 {
		r.append(keyOf(i))
	}
	other := r.join("other")
	if got := r.claims(other, 10); len(got) != 10 {
		t.Fatal(got)
	}
	early := r.record(keyOf(20))
	r.exec("update keyline.mailboxes set due_at = due_at - interval '1 hour' where record_id = $1", early)
	isEarly := func(c core.Claim) bool { return c.Record == early }
	bounded := func(limit int) []core.Claim {
		claims, err := r.claim(t.Context(), core.ClaimRequest{Worker: r.me, Limit: limit}, time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC))
		if err != nil {
			t.Fatal(err)
		}
		return claims
	}
	if got := bounded(5); len(got) != 5 || slices.ContainsFunc(got, isEarly) {
		t.Errorf("it began before where the other has come to: %v", got)
	}
	if got := r.claims(other, 3); !slices.ContainsFunc(got, isEarly) {
		t.Errorf("a look at everything does not find the early one: %v", got)
	}
	if got := bounded(2); len(got) != 2 { // whoever came less far takes nothing away
		t.Errorf("claimed %v", got)
	}
}

func TestABoundedClaimThatFindsLittleLooksEverywhere(t *testing.T) {
	fake := clock.NewFake(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	r := newRig(t, func(c *Config) { c.Clock = fake })
	for i := range 4 {
		r.append(keyOf(i))
	}
	if got := r.claims(r.me, 4); len(got) != 4 {
		t.Fatal(got)
	}
	old := r.append("old")
	r.exec("update keyline.mailboxes set due_at = clock_timestamp() - interval '1 hour' where record_id = $1", old)
	got, err := r.Claim(t.Context(), core.ClaimRequest{Worker: r.me, Limit: 4})
	if err != nil || len(got) != 1 || got[0].Record != old {
		t.Errorf("claimed %v, %v; nothing must mean nothing", got, err)
	}
}

// A timestamp can be farther away than a duration can tell.
func TestTheNextDueTimeMayBeBeyondReckoning(t *testing.T) {
	r := newRig(t)
	r.register(definition("c"))
	r.sweepAll()
	r.append("r", "t")
	for _, due := range []string{"9999-12-31", "2700-01-01", "100000-01-01"} {
		r.exec("update keyline.mailboxes set due_at = '" + due + "'")
		if d, ok, err := r.NextDue(t.Context(), nil); !ok || err != nil || d < 200*365*24*time.Hour {
			t.Errorf("due in %s: %s %v %v", due, d, ok, err)
		}
	}
}
