package store

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/internal/core"
)

// opened appends to a record in a transaction that stays open.
func (r *rig) opened(key string) pgx.Tx {
	r.Helper()
	tx, err := r.pool.Begin(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	r.appendOn(tx, key, "t")
	return tx
}

func TestASettleMeetsAnAppendAtEveryStep(t *testing.T) {
	r := newRig(t)

	t.Log("append uncommitted: busy, for settle and hand-back alike")
	l := r.load(r.claimOne(r.append("r")))
	tx := r.opened("r")
	handBack := settle(l)
	handBack.Then, handBack.DueAt = core.HandBack, r.clock.Now().Add(time.Hour)
	for _, f := range []core.Flush{settle(l), handBack} {
		if res := r.flush1(f); res.Status != core.FlushKept || !res.Busy || res.Head != 0 {
			t.Fatalf("%d: %+v", f.Then, res)
		}
	}
	if r.mailbox(l.Record) != "claimed" {
		t.Fatalf("mailbox %q", r.mailbox(l.Record))
	}

	t.Log("append committed: the head moved")
	r.commit(tx)
	for _, f := range []core.Flush{settle(l), handBack} {
		if res := r.flush1(f); res.Status != core.FlushKept || res.Busy || res.Head != 2 {
			t.Fatalf("%d: %+v", f.Then, res)
		}
	}

	t.Log("append rolled back: it settles")
	l = r.load(core.Claim{Record: l.Record, Token: l.Token})
	tx = r.opened("r")
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if res := r.flush1(settle(l)); res.Status != core.FlushGone {
		t.Fatalf("%+v", res)
	}
	if r.mailbox(l.Record) != "" {
		t.Fatalf("mailbox %q", r.mailbox(l.Record))
	}

	t.Log("append after the settle: a mailbox, due")
	r.append("r")
	if r.mailbox(l.Record) != "due" {
		t.Fatalf("mailbox %q", r.mailbox(l.Record))
	}
	if l := r.load(r.claimOne(l.Record)); l.Base != 2 || l.Head != 3 || len(l.Events) != 1 {
		t.Errorf("%+v", l)
	}
}

func TestAnAppendWaitsForASettleInFlightAndFindsNoMailbox(t *testing.T) {
	r := newRig(t)
	l := r.load(r.claimOne(r.append("r")))
	// The settle as it is between its locks and its commit.
	tx, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		"select from keyline.mailboxes for no key update", "select from keyline.records for no key update",
		"update keyline.records set cursor = head", "delete from keyline.mailboxes",
	} {
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.append("r")
	}()
	r.blocked(".append(")
	r.commit(tx)
	soon(r, done, "append")
	if r.mailbox(l.Record) != "due" || get[int64](r, "select head from keyline.records") != 2 {
		t.Errorf("mailbox %q", r.mailbox(l.Record))
	}
}

func TestAHandBackWithALateDueTimeCannotHideAnAppendMadeDuringTheClaim(t *testing.T) {
	r := newRig(t)
	l := r.load(r.claimOne(r.append("r")))
	r.append("r") // finds the mailbox claimed, wakes nobody
	f := core.Flush{Record: l.Record, Token: l.Token, Head: l.Head, Cursor: 1, Then: core.HandBack, DueAt: r.clock.Now().Add(time.Hour)}
	if res := r.flush1(f); res.Status != core.FlushKept || res.Head != 2 {
		t.Fatalf("%+v", res)
	}
	f.Head = 2
	if res := r.flush1(f); res.Status != core.FlushGone || r.mailbox(l.Record) != "later" {
		t.Fatalf("%+v, mailbox %q", res, r.mailbox(l.Record))
	}
	r.append("r")
	if r.mailbox(l.Record) != "due" {
		t.Errorf("an append after it: mailbox %q", r.mailbox(l.Record))
	}
}

func TestAReleaseIsDueWithinASecondAndWantsNothing(t *testing.T) {
	r := newRig(t)
	for name, tc := range map[string]struct {
		due  time.Duration // 0: not given
		want string
	}{"now": {0, "due"}, "past": {-time.Hour, "due"}, "late": {time.Hour, "later"}} {
		l := r.load(r.claimOne(r.append(name)))
		tx := r.opened(name) // no lock of the record is needed
		f := core.Flush{Record: l.Record, Token: l.Token, Head: l.Head, Cursor: 1, Then: core.Release, Wants: []int32{7}, WantsDueAt: r.clock.Now()}
		if tc.due != 0 {
			f.DueAt = r.clock.Now().Add(tc.due)
		}
		if res := r.flush1(f); res.Status != core.FlushGone {
			t.Fatalf("%s: %+v", name, res)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := get[string](r, `select case when wants is not null then 'wants' when due_at > clock_timestamp() + interval '1 second' then 'too late'
			else $2 end from keyline.mailboxes where record_id = $1`, l.Record, tc.want); got != tc.want {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func TestARepeatedHandBackCannotUndoWhatHappenedSince(t *testing.T) {
	r := newRig(t)
	c := r.register(definition("c"))
	l := r.load(r.claimOne(r.append("r")))
	f := everything(l, c)
	f.Upserts[0].Seq, f.Then, f.DueAt = 0, core.HandBack, r.clock.Now().Add(time.Hour)
	batch := []pending{ahead(f, r.epoch())}
	if res, err := r.flush(t.Context(), batch, 0, 1); err != nil || res[0].status != core.FlushGone {
		t.Fatal(res, err)
	}
	// Its answer is lost. Meanwhile somebody appends, another worker works.
	r.append("r")
	if res, err := r.flush(t.Context(), batch, 0, 1); err != nil || res[0].status != core.FlushFenced {
		t.Fatal(res, err)
	}
	if r.mailbox(l.Record) != "due" {
		t.Errorf("mailbox %q", r.mailbox(l.Record))
	}
	next := r.claimOne(l.Record)
	r.flush1(core.Flush{Record: l.Record, Token: next.Token, Head: 2, Cursor: 2, Deletes: []int32{c}})
	if res, err := r.flush(t.Context(), batch, 0, 1); err != nil || res[0].status != core.FlushFenced {
		t.Fatal(res, err)
	}
	if r.mailbox(l.Record) != "claimed" || get[int64](r, "select count(*) from keyline.checkpoints") != 0 {
		t.Error("a repeated hand-back undid the next holder's work")
	}
}

// TestNoRecordHasEventsAndNoMailbox lets appenders race settles, hand-backs and
// releases on a few records: whatever happens, all events are settled in the end.
func TestNoRecordHasEventsAndNoMailbox(t *testing.T) {
	r := newRig(t)
	const keys, appends = 3, 400
	var ended atomic.Bool
	var appenders, workers sync.WaitGroup
	for range 4 {
		rnd := seeded(t)
		appenders.Go(func() {
			for range appends / 4 {
				r.append(keyOf(rnd.IntN(keys)))
			}
		})
	}
	for range 2 {
		w := on(t, r.db)
		rnd := seeded(t)
		workers.Go(func() {
			for {
				last := ended.Load() // read before the look
				claims, err := w.Claim(t.Context(), core.ClaimRequest{Worker: w.me, Limit: 2, Unbounded: true})
				if err != nil {
					t.Error(err)
					return
				}
				if len(claims) == 0 && last {
					return
				}
				for _, c := range claims {
					f := settle(w.load(c))
					switch rnd.IntN(4) {
					case 0: // hand-backs with a late due time, where nothing is left to do
						f.Then, f.DueAt = core.HandBack, w.clock.Now().Add(time.Hour)
					case 1:
						f.Cursor, f.Then = 0, core.Release
					}
					if res := w.flush1(f); res.Status == core.FlushKept {
						w.flush1(core.Flush{Record: c.Record, Token: c.Token, Head: f.Head, Then: core.Release})
					}
				}
			}
		})
	}
	appenders.Wait()
	ended.Store(true)
	workers.Wait()
	if n := get[int64](r, "select count(*) from keyline.events"); n != appends {
		t.Errorf("%d events", n)
	}
	if n := get[int64](r, `select count(*) from keyline.records r left join keyline.mailboxes m on m.record_id = r.id
		where greatest(r.cursor, m.cursor) < r.head`); n != 0 {
		t.Errorf("%d records have events that nobody will come for", n)
	}
}
