package store

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/internal/core"
)

// The append finds the mailbox that the settle is deleting, and waits to see
// what becomes of it.
func TestAnAppendThatMeetsASettleIsNotLost(t *testing.T) {
	r := newRig(t)
	r.register(definition("one"))
	for name, end := range map[string]func(*rig, pgx.Tx){"commits": (*rig).commit, "rolls back": (*rig).rollbackTx} {
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

// A holder that does not hear that its claim ended as it asked says it again; by
// then somebody else may have been there.
func TestARepeatedEndOfAClaimIsFencedWhateverCameBetween(t *testing.T) {
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
	ids := r.appendTo("", n)
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
