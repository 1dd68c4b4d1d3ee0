package store

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/keylinehq/keyline/internal/core"
)

// everything is a flush that writes in every table that a flush writes in.
func everything(l core.Loaded, consumer int32) core.Flush {
	at := time.Date(2031, 1, 2, 3, 4, 5, 0, time.UTC)
	return core.Flush{
		Record: l.Record, Token: l.Token, Head: l.Head, Cursor: 1,
		Upserts:     []core.Checkpoint{{Record: l.Record, Consumer: consumer, Seq: 1, State: core.Backoff, Attempt: 2, NextAttemptAt: at, FirstFailedAt: at, ErrorCode: "boom"}},
		DeadLetters: []core.DeadLetter{{Record: l.Record, Seq: 1, Consumer: consumer, Attempt: 1, EventID: uuid.New(), Reason: core.DeadPermanent, Code: "c", Message: "m", FirstFailedAt: at, FailedAt: at}},
		Failures:    []core.Failure{{Record: l.Record, Seq: 2, Consumer: consumer, Attempt: 2, At: at, Code: "boom", Message: "bang"}},
		Skips:       []core.Skip{{Record: l.Record, Seq: 1, Consumer: consumer, Attempt: 1, Code: "handler", Reason: "no", At: at}},
		Counts:      []core.Counts{{Consumer: consumer, Completed: 3, Failed: 1, Skipped: 1, Dead: 1, Retried: 1, LastEventAt: at, LastSuccessAt: at, LastFailureAt: at}},
	}
}

// written counts all rows that everything writes.
func (r *rig) written() int64 {
	return get[int64](r, `select (select count(*) from keyline.checkpoints) + (select count(*) from keyline.dead_letters) + (select count(*) from keyline.failures)
		+ (select count(*) from keyline.skips) + (select count(*) from keyline.consumer_health) + (select count(*) from keyline.mailboxes where cursor > 0)`)
}

func TestAFlushWritesAllPartsAndTheClaimGoesOn(t *testing.T) {
	r := newRig(t)
	c := r.register(definition("c"))
	l := r.load(r.claimOne(r.append("r", "t", "t")))
	f := everything(l, c)
	if res := r.flush1(f); res.Status != core.FlushKept || res.Head != 0 || res.Busy || res.Pending {
		t.Fatalf("%+v", res)
	}
	if n := r.written(); n != 6 {
		t.Errorf("%d rows", n)
	}
	again := r.load(core.Claim{Record: l.Record, Token: l.Token})
	if again.Base != 1 || len(again.Checkpoints) != 1 || again.Checkpoints[0].Attempt != 2 || again.Checkpoints[0].ErrorCode != "boom" {
		t.Errorf("%+v", again)
	}
	f = core.Flush{Record: l.Record, Token: l.Token, Head: 2, Cursor: 2, Deletes: []int32{c}, Then: core.Settle}
	if res := r.flush1(f); res.Status != core.FlushGone {
		t.Fatalf("%+v", res)
	}
	if got := get[int64](r, "select cursor from keyline.records"); got != 2 || r.mailbox(l.Record) != "" {
		t.Errorf("cursor %d, mailbox %q", got, r.mailbox(l.Record))
	}
	if n := get[int64](r, "select count(*) from keyline.checkpoints"); n != 0 {
		t.Errorf("%d rows left", n)
	}
}

func TestAFlushThatIsFencedWritesNothing(t *testing.T) {
	r := newRig(t)
	c := r.register(definition("c"))
	lost, kept := r.load(r.claimOne(r.append("lost", "t", "t"))), r.load(r.claimOne(r.append("kept")))
	r.exec("update keyline.mailboxes set token = nextval('keyline.tokens') where record_id = $1", lost.Record)
	gone := r.load(r.claimOne(r.append("gone")))
	r.exec("delete from keyline.mailboxes where record_id = $1", gone.Record)
	results := r.flushed(everything(lost, c), settle(kept), everything(gone, c))
	if results[0].Status != core.FlushFenced || results[2].Status != core.FlushFenced || results[1].Status != core.FlushGone {
		t.Errorf("%+v", results)
	}
	if n := get[int64](r, "select count(*) from keyline.failures") + get[int64](r, "select count(*) from keyline.checkpoints") +
		get[int64](r, "select count(*) from keyline.dead_letters") + get[int64](r, "select count(*) from keyline.skips"); n != 0 {
		t.Errorf("a fenced flush wrote %d rows", n)
	}
	if r.mailbox(lost.Record) != "claimed" || get[int64](r, "select cursor from keyline.mailboxes where record_id = $1", lost.Record) != 0 {
		t.Error("the new holder's mailbox was touched")
	}
}

func TestAFlushPlannedUnderAnOlderEpochWritesNothing(t *testing.T) {
	r := newRig(t)
	c := r.register(definition("c"))
	l := r.load(r.claimOne(r.append("r", "t", "t")))
	before := r.epoch()
	r.register(definition("d"))
	got := make(chan core.FlushResult, 1)
	f := everything(l, c)
	f.Then = core.HandBack
	r.Flush(&f, before, func(res core.FlushResult) { got <- res })
	if res := soon(r, got, "answer"); res.Status != core.FlushEpoch {
		t.Errorf("%+v", res)
	}
	if n := r.written(); n != 0 || r.mailbox(l.Record) != "claimed" {
		t.Errorf("%d rows, mailbox %q", n, r.mailbox(l.Record))
	}
}

func TestALockedMailboxGoesIntoTheNextBatchAndKeepsNobody(t *testing.T) {
	r := newRig(t)
	locked, free := r.load(r.claimOne(r.append("locked"))), r.load(r.claimOne(r.append("free")))
	tx, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "select from keyline.mailboxes where record_id = $1 for update", locked.Record); err != nil {
		t.Fatal(err)
	}
	one, two := make(chan core.FlushResult, 1), make(chan core.FlushResult, 1)
	epoch := r.epoch()
	r.Flush(new(settle(locked)), epoch, func(res core.FlushResult) { one <- res })
	r.Flush(new(settle(free)), epoch, func(res core.FlushResult) { two <- res })
	if res := soon(r, two, "the free one"); res.Status != core.FlushGone {
		t.Errorf("free: %+v", res)
	}
	select {
	case res := <-one:
		t.Errorf("answered while locked: %+v", res)
	default:
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if res := soon(r, one, "the locked one"); res.Status != core.FlushGone {
		t.Errorf("locked: %+v", res)
	}
}

func TestABatchThatIsSentAgainCountsOnce(t *testing.T) {
	r := newRig(t)
	c := r.register(definition("c"))
	l := r.load(r.claimOne(r.append("r", "t", "t")))
	f := everything(l, c)
	for range 3 {
		results, err := r.flush(t.Context(), []pending{ahead(f, r.epoch())}, 1, 77)
		if err != nil || results[0].status != core.FlushKept {
			t.Fatal(results, err)
		}
	}
	if n := get[int64](r, "select completed + failed from keyline.consumer_health"); n != 4 {
		t.Errorf("counted %d", n)
	}
	if n := r.written(); n != 6 {
		t.Errorf("%d rows", n)
	}
	if _, err := r.flush(t.Context(), []pending{ahead(f, r.epoch())}, 1, 78); err != nil {
		t.Fatal(err)
	}
	if n := get[int64](r, "select completed from keyline.consumer_health"); n != 6 {
		t.Errorf("the next batch: counted %d", n)
	}
}

func TestAnOutcomeThatCannotBeWrittenFailsAlone(t *testing.T) {
	for _, text := range []string{"a\x00b", "a\xffb"} {
		t.Run(strings.ToValidUTF8(text, "invalid"), func(t *testing.T) {
			r := newRig(t)
			c := r.register(definition("c"))
			var flushes []core.Flush
			for i := range 9 {
				l := r.load(r.claimOne(r.append(keyOf(i), "t", "t")))
				flushes = append(flushes, everything(l, c))
			}
			culprit := &flushes[4]
			culprit.DeadLetters[0].Message, culprit.Failures[0].Code, culprit.Failures[0].Message = text, text, text
			culprit.Skips[0].Reason, culprit.Upserts[0].ErrorCode = text, text
			for i, res := range r.flushed(flushes...) {
				if res.Status != core.FlushKept || res.Rewritten != (i == 4) {
					t.Errorf("%d: %+v", i, res)
				}
			}
			if n := get[int64](r, "select count(*) from keyline.failures where error_code = 'boom'"); n != 8 {
				t.Errorf("%d neighbours written", n)
			}
			for _, table := range []string{"failures", "dead_letters", "checkpoints"} {
				if code := get[string](r, "select error_code from keyline."+table+" where record_id = $1", culprit.Record); code != core.CodeUnwritable {
					t.Errorf("%s: code %q", table, code)
				}
			}
			if n := get[int64](r, "select sum(completed)::bigint from keyline.consumer_health"); n != 27 {
				t.Errorf("counted %d completions", n)
			}
		})
	}
}

func TestAPendingCommandKeepsARecordFromSettlingAndBeingHandedBack(t *testing.T) {
	r := newRig(t)
	r.register(definition("c"))
	l := r.load(r.claimOne(r.append("r")))
	id, err := r.Command(t.Context(), core.Command{Record: l.Record, Kind: core.CommandRetry, Actor: "op"}, "r")
	if err != nil {
		t.Fatal(err)
	}
	f := settle(l)
	for _, then := range []core.Disposition{core.Settle, core.HandBack} {
		f.Then, f.DueAt = then, r.clock.Now().Add(time.Hour)
		if res := r.flush1(f); res.Status != core.FlushKept || !res.Pending || res.Head != 1 || res.Busy {
			t.Errorf("%d: %+v", then, res)
		}
	}
	if r.mailbox(l.Record) != "claimed" {
		t.Fatalf("mailbox %q", r.mailbox(l.Record))
	}
	f.Then, f.DueAt, f.Applied = core.Settle, time.Time{}, []core.AppliedCommand{{ID: id, Done: true, Detail: "ok"}}
	if res := r.flush1(f); res.Status != core.FlushGone {
		t.Errorf("applied: %+v", res)
	}
	if out, err := r.operate().Await(t.Context(), id); err != nil || !out.Done || out.Detail != "ok" {
		t.Errorf("%+v, %v", out, err)
	}
}

func TestADeadLettersRetryKeepsARecordFromSettlingButNotFromBeingHandedBack(t *testing.T) {
	r := newRig(t)
	c := r.register(definition("c"))
	l := r.load(r.claimOne(r.append("r")))
	f := everything(l, c)
	f.Upserts, f.Failures, f.Skips = nil, nil, nil
	r.flush1(f)
	dead := get[int64](r, "select id from keyline.dead_letters")
	due := r.clock.Now().Add(time.Hour)
	f = core.Flush{Record: l.Record, Token: l.Token, Head: 1, Cursor: 1, Then: core.Settle,
		DeadUpdates: []core.DeadUpdate{{DeadRetry: core.DeadRetry{ID: dead, Record: l.Record, Consumer: c, Seq: 1, Attempt: 1, Granted: 1, DueAt: due}, Status: core.DeadWaiting, At: due}}}
	if res := r.flush1(f); res.Status != core.FlushKept || !res.Pending {
		t.Errorf("settle: %+v", res)
	}
	f.Then, f.DueAt = core.HandBack, due
	if res := r.flush1(f); res.Status != core.FlushGone || r.mailbox(l.Record) != "later" {
		t.Errorf("hand back: %+v, mailbox %q", res, r.mailbox(l.Record))
	}
	l = r.load(r.claimOne(l.Record))
	f.Token, f.Then, f.DueAt = l.Token, core.Settle, time.Time{}
	f.DeadUpdates[0].Status, f.DeadUpdates[0].Attempt = core.DeadDelivered, 2
	if res := r.flush1(f); res.Status != core.FlushGone {
		t.Errorf("settle after the retry: %+v", res)
	}
	if status := get[string](r, "select status from keyline.dead_letters"); status != "delivered" {
		t.Errorf("dead letter is %s", status)
	}
}

func TestADeadLetterWithoutAnIdIsFoundByItsDelivery(t *testing.T) {
	r := newRig(t)
	c := r.register(definition("c"))
	l := r.load(r.claimOne(r.append("r", "t", "t")))
	r.flush1(everything(l, c))
	f := core.Flush{Record: l.Record, Token: l.Token, Head: 2, Cursor: 1,
		DeadUpdates: []core.DeadUpdate{{DeadRetry: core.DeadRetry{Record: l.Record, Consumer: c, Seq: 1, Attempt: 5}, Status: core.DeadResolved, Actor: "op", Note: "gave up", At: r.clock.Now()}}}
	r.flush1(f)
	if got := get[string](r, "select status || ' by ' || resolved_by || ': ' || resolution from keyline.dead_letters"); got != "resolved by op: gave up" {
		t.Errorf("%s", got)
	}
}

func TestClearEndsSuspicion(t *testing.T) {
	r := newRig(t)
	id := r.append("r")
	r.exec("update keyline.mailboxes set crashes = 2, unclean = true")
	c := r.claimOne(id)
	if c.Crashes != 2 || !c.Unclean {
		t.Fatalf("%+v", c)
	}
	r.flush1(core.Flush{Record: id, Token: c.Token, Head: 1, Clear: true})
	if l := r.load(c); l.Crashes != 0 || l.Unclean {
		t.Errorf("%+v", l.Claim)
	}
}

func TestManyFlushesOfOneRecordStayInOrder(t *testing.T) {
	r := newRig(t)
	c := r.register(definition("c"))
	l := r.load(r.claimOne(r.append("r", "t", "t")))
	var mu sync.Mutex
	var order []int
	var wg sync.WaitGroup
	epoch := r.epoch()
	for i := range 50 {
		wg.Add(1)
		r.Flush(&core.Flush{Record: l.Record, Token: l.Token, Head: 2, Cursor: 1,
			Upserts: []core.Checkpoint{{Record: l.Record, Consumer: c, Seq: 1, State: core.Ready, Attempt: i}}}, epoch, func(core.FlushResult) {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, i)
			wg.Done()
		})
	}
	wg.Wait()
	if !slices.IsSorted(order) || len(order) != 50 {
		t.Errorf("answered in the order %v", order)
	}
	if got := get[int](r, "select attempt from keyline.checkpoints"); got != 49 {
		t.Errorf("the last one written is %d", got)
	}
}

func TestAClosedStoreAnswersWhatItWasGiven(t *testing.T) {
	r := newRig(t)
	l := r.load(r.claimOne(r.append("r")))
	got := make(chan core.FlushResult, 2)
	epoch := r.epoch()
	r.Flush(new(settle(l)), epoch, func(res core.FlushResult) { got <- res })
	r.Store.Close()
	if res := soon(r, got, "answer"); res.Status != core.FlushGone {
		t.Errorf("handed over before: %+v", res)
	}
	r.Flush(new(settle(l)), epoch, func(res core.FlushResult) { got <- res })
	if res := soon(r, got, "answer"); res.Status != core.FlushFenced {
		t.Errorf("handed over after: %+v", res)
	}
	r.Store.Close()
}
