package store

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/core"
)

func TestASettleMovesTheCursorAndRemovesTheMailbox(t *testing.T) {
	r := newRig(t)
	r.register(definition("one"))
	id := r.append("r")
	r.append("r")
	c := r.claimOne(id)
	l := r.load(c)
	if l.Head != 2 || l.Base != 0 || len(l.Events) != 2 || l.Key != "r" {
		t.Fatalf("loaded %+v", l)
	}
	if res := r.flush1(settleAt(c, 2)); res.Status != core.FlushGone || res.Head != 2 {
		t.Fatalf("%+v", res)
	}
	if b := r.box(id); b.exists {
		t.Errorf("the mailbox is still there: %+v", b)
	}
	if n := r.count("records", "id = $1 and head = 2 and cursor = 2", id); n != 1 {
		t.Error("the cursor is not at the head")
	}
}

// An appender and a settle of the same record, in every order in which they
// can meet. The appender's transaction is open all along.
func TestASettleRacesAnAppender(t *testing.T) {
	r := newRig(t)
	r.register(definition("one"))
	for name, end := range map[string]func(pgx.Tx) int64{
		"commits":    func(tx pgx.Tx) int64 { r.commitTx(tx); return 2 },
		"rolls back": func(tx pgx.Tx) int64 { r.rollbackTx(tx); return 1 },
	} {
		t.Run(name, func(t *testing.T) {
			r := r.sub(t)
			id := r.append(name)
			c := r.claimOne(id)
			appender := r.begin()
			r.appendOn(appender, name, "t")

			res := r.flush1(settleAt(c, 1))
			if res.Status != core.FlushKept || !res.Busy || res.Head != 0 {
				t.Fatalf("with the append uncommitted: %+v", res)
			}
			if b := r.box(id); b.claimedBy != r.me || b.token != c.Token || b.cursor != 1 {
				t.Errorf("with the append uncommitted: %+v", b)
			}
			if res := r.flush1(core.Flush{Record: id, Token: c.Token, Head: 1, Cursor: 1, Then: core.HandBack}); res.Status != core.FlushKept || !res.Busy {
				t.Errorf("a hand-back with the append uncommitted: %+v", res)
			}
			head := end(appender)
			r.noneStranded()

			res = r.flush1(settleAt(c, 1))
			if head == 1 {
				if res.Status != core.FlushGone || r.box(id).exists {
					t.Errorf("after the rollback: %+v", res)
				}
				return
			}
			if res.Status != core.FlushKept || res.Busy || res.Head != head {
				t.Fatalf("after the commit: %+v", res)
			}
			if b := r.box(id); b.claimedBy != r.me || b.token != c.Token {
				t.Errorf("after the commit: %+v", b)
			}
			if res := r.flush1(settleAt(c, head)); res.Status != core.FlushGone {
				t.Errorf("at the new head: %+v", res)
			}
			r.noneStranded()
		})
	}
}

// The append finds the mailbox that the settle is deleting, and waits to see
// what becomes of it.
func TestAnAppendThatMeetsASettleIsNotLost(t *testing.T) {
	r := newRig(t)
	r.register(definition("one"))
	for name, end := range map[string]func(*rig, pgx.Tx){"commits": (*rig).commitTx, "rolls back": (*rig).rollbackTx} {
		t.Run(name, func(t *testing.T) {
			r := r.sub(t)
			id := r.append(name)
			c := r.claimOne(id)
			settling := r.begin()
			r.flushIn(settling, settleAt(c, 1))
			appended := background(func() error { return appendRaw(t.Context(), r.pool, name) })
			r.blocked("append")
			end(r, settling)
			if err := soon(r, appended, "the append"); err != nil {
				t.Fatal(err)
			}
			r.noneStranded()
			b, res := r.box(id), r.flush1(settleAt(c, 1))
			if name == "commits" && (b.claimedBy != 0 || !b.due || res.Status != core.FlushFenced) {
				t.Errorf("after the settle: %+v, mailbox %+v", res, b)
			}
			if name == "rolls back" && (b.claimedBy != r.me || res.Status != core.FlushKept || res.Head != 2) {
				t.Errorf("after no settle: %+v, mailbox %+v", res, b)
			}
			r.noneStranded()
		})
	}
}

// Appenders and a holder that settles as soon as it can, without any steps in
// between; whatever they do, no event is left without a mailbox and none is lost.
func TestSettlesAndAppendsNeverStrandARecord(t *testing.T) {
	r := newRig(t)
	r.register(definition("one"))
	const appenders, each, keys = 4, 60, 5
	var (
		appending sync.WaitGroup
		over      atomic.Bool
		failed    atomic.Pointer[error]
	)
	seeds := seeded(t)
	for range appenders {
		rnd := clock.NewRand(uint64(seeds.Int64N(1 << 62)))
		appending.Go(func() {
			for range each {
				if err := appendRaw(t.Context(), r.pool, keyOf(rnd.IntN(keys))); err != nil {
					failed.Store(&err)
				}
			}
		})
	}
	go func() { appending.Wait(); over.Store(true) }()
	settled := 0
	for {
		last := over.Load() // read before the claim that finds nothing
		claims := r.claims(r.me, 100)
		if len(claims) == 0 && last {
			break
		}
		for _, c := range claims {
			for {
				res := r.flush1(settleAt(c, r.load(c).Head))
				if res.Status == core.FlushGone {
					settled++
					break
				}
				if res.Status != core.FlushKept {
					t.Fatalf("%+v", res)
				}
			}
		}
	}
	if err := failed.Load(); err != nil {
		t.Fatal(*err)
	}
	r.noneStranded()
	if n := get[int](r, "select sum(cursor) from keyline.records"); n != appenders*each {
		t.Errorf("%d events of %d are settled (in %d settles)", n, appenders*each, settled)
	}
	if n := r.count("mailboxes", ""); n != 0 {
		t.Errorf("%d mailboxes are left", n)
	}
}

func TestAHandBackIsRefusedWhereTheHeadMoved(t *testing.T) {
	r := newRig(t)
	r.register(definition("one"))
	id := r.append("r")
	c := r.claimOne(id)
	r.append("r")
	late := core.Flush{Record: id, Token: c.Token, Head: 1, Cursor: 1, Then: core.HandBack, DueAt: r.clock.Now().Add(time.Hour)}
	if res := r.flush1(late); res.Status != core.FlushKept || res.Head != 2 {
		t.Fatalf("%+v", res)
	}
	if b := r.box(id); b.claimedBy != r.me || b.cursor != 1 {
		t.Errorf("mailbox: %+v", b)
	}
	late.Head = 2
	if res := r.flush1(late); res.Status != core.FlushGone {
		t.Fatalf("with the head as it is: %+v", res)
	}
	if b := r.box(id); b.claimedBy != 0 || b.due || b.dueIn < 3000 || b.dueIn > 3700 {
		t.Errorf("mailbox: %+v", b)
	}
}

// The append finds the mailbox claimed and leaves it to the holder; a hand-back
// far into the future must not bury it.
func TestAnAppendAfterAHandBackIsDueAtOnce(t *testing.T) {
	r := newRig(t)
	r.register(definition("one"))
	id := r.append("r")
	c := r.claimOne(id)
	if res := r.flush1(core.Flush{Record: id, Token: c.Token, Head: 1, Cursor: 0, Then: core.HandBack, DueAt: r.clock.Now().Add(time.Hour)}); res.Status != core.FlushGone {
		t.Fatalf("%+v", res)
	}
	r.append("r")
	if b := r.box(id); !b.due {
		t.Errorf("mailbox: %+v", b)
	}
}

func TestAReleaseIsDueWithinASecond(t *testing.T) {
	r := newRig(t)
	one := r.register(definition("one"))
	now := r.clock.Now()
	for name, at := range map[string]time.Time{"now": {}, "in the past": now.Add(-time.Hour), "soon": now.Add(500 * time.Millisecond), "in an hour": now.Add(time.Hour)} {
		id := r.append(name)
		c := r.claimOne(id)
		// An append that the release does not know of.
		r.append(name)
		res := r.flush1(core.Flush{Record: id, Token: c.Token, Head: 1, Cursor: 1, Then: core.Release, DueAt: at, Wants: []int32{one}, WantsDueAt: now.Add(time.Hour)})
		if res.Status != core.FlushGone {
			t.Errorf("%s: %+v", name, res)
		}
		if b := r.box(id); b.claimedBy != 0 || b.wants != nil || b.endless || b.dueIn > 1 || b.cursor != 1 {
			t.Errorf("%s: %+v", name, b)
		}
	}
}

// A holder that does not hear that its hand-back succeeded says it again; by
// then somebody else may have been there.
func TestARepeatedHandBackCannotUndoWhatHappenedSince(t *testing.T) {
	r := newRig(t)
	one := r.register(definition("one"))
	for name, then := range map[string]core.Disposition{"hand-back": core.HandBack, "release": core.Release, "settle": core.Settle} {
		t.Run(name, func(t *testing.T) {
			r := r.sub(t)
			id := r.append(name)
			c := r.claimOne(id)
			f := core.Flush{Record: id, Token: c.Token, Head: 1, Cursor: 1, Then: then, DueAt: r.clock.Now().Add(time.Hour),
				Upserts: []core.Checkpoint{backoff(one, 0, 1, r.clock.Now().Add(time.Hour))}}
			if res := r.flush1(f); res.Status != core.FlushGone {
				t.Fatalf("%+v", res)
			}
			unclaimed := func(what string) {
				t.Helper()
				before := r.box(id)
				if res := r.flush1(f); res.Status != core.FlushFenced {
					t.Errorf("%s: %+v", what, res)
				}
				after := r.box(id)
				before.dueIn, after.dueIn, before.due, after.due = 0, 0, false, false // time passes
				if fmt.Sprint(before) != fmt.Sprint(after) {
					t.Errorf("%s: %+v became %+v", what, before, after)
				}
			}
			unclaimed("at once")
			r.append(name)
			unclaimed("after an append")
			if !r.box(id).due {
				t.Error("the append is not due")
			}
			again := r.claimOne(id)
			unclaimed("after the same worker's next claim")
			if res := r.flush1(core.Flush{Record: id, Token: again.Token, Head: 2, Cursor: 2, Then: core.Settle, Deletes: []int32{one}}); res.Status != core.FlushGone {
				t.Fatalf("%+v", res)
			}
			unclaimed("after the next settle")
			if p := r.row(id, one); p != nil {
				t.Errorf("the checkpoint is back: %+v", p)
			}
		})
	}
	r.noneStranded()
}

func TestSettlesOfOneBatchDoNotHoldEachOtherUp(t *testing.T) {
	r := newRig(t)
	r.register(definition("one"))
	const n = 16
	ids := r.appendSameLane("", n)
	var claims []core.Claim
	var flushes []core.Flush
	for i, id := range ids {
		claims = append(claims, r.claimOne(id))
		flushes = append(flushes, settleAt(claims[i], 1))
	}
	key := func(id int64) string {
		return get[string](r, "select record_key from keyline.records where id = $1", id)
	}
	// One is being appended to, one has a new head, one has a command, one is lost.
	appender := r.begin()
	r.appendOn(appender, key(ids[3]), "t")
	r.append(key(ids[7]))
	if _, err := r.Command(t.Context(), core.Command{Record: ids[11], Kind: core.CommandRetry, Actor: "me"}, "r11"); err != nil {
		t.Fatal(err)
	}
	r.exec("update keyline.mailboxes set token = nextval('keyline.tokens') where record_id = $1", ids[15])

	waits := r.together(flushes...)
	var gone []int64
	for i, wait := range waits {
		res := soon(r, wait, "a flush")
		want := core.FlushResult{Record: ids[i], Token: claims[i].Token, Status: core.FlushGone, Head: 1}
		switch i {
		case 3:
			want.Status, want.Head, want.Busy = core.FlushKept, 0, true
		case 7:
			want.Status, want.Head = core.FlushKept, 2
		case 11:
			want.Status, want.Pending = core.FlushKept, true
		case 15:
			want.Status, want.Head = core.FlushFenced, 0
		default:
			gone = append(gone, ids[i])
		}
		if res != want {
			t.Errorf("record %d: %+v, want %+v", i, res, want)
		}
	}
	for i, id := range ids {
		if left := r.box(id).exists; left == slices.Contains(gone, id) {
			t.Errorf("record %d: a mailbox is left: %v", i, left)
		}
	}
	if n := r.count("records", "id = any ($1) and cursor = head", gone); n != len(gone) {
		t.Errorf("%d records of %d are settled", n, len(gone))
	}
	r.noneStranded()
}
