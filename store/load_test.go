package store

import (
	"slices"
	"testing"
	"time"

	"github.com/keylinehq/keyline/internal/core"
)

func seqs(events []core.Event) []int64 {
	var list []int64
	for _, e := range events {
		list = append(list, e.Seq)
	}
	return list
}

func TestLoadReadsWhatAHolderNeeds(t *testing.T) {
	r := newRig(t)
	a, b := r.register(definition("a"), definition("b")), int32(0)
	b, _ = r.FindConsumer(t.Context(), "b")
	id := r.append("r", "t1", "t2", "t3", "t4", "t5", "t6", "t7", "t8")
	r.exec("update keyline.records set cursor = 3 where id = $1", id)
	r.exec("update keyline.mailboxes set cursor = 5 where record_id = $1", id)
	due := time.Date(2031, 2, 3, 4, 5, 6, 7000, time.UTC)
	r.exec(`insert into keyline.checkpoints (record_id, consumer_id, seq, state, attempt, granted, crashes, next_attempt_at, first_failed_at, error_code, live_from)
		values ($1, $2, 1, 'backoff', 3, 1, 2, $4, $4, 'boom', 6), ($1, $3, 0, 'parked', 1, 0, 0, null, $4, 'bad', 0)`, id, a, b, due)
	r.exec(`insert into keyline.dead_letters (record_id, seq, consumer_id, event_id, attempt, granted, crashes, reason, error_code, first_failed_at, failed_at, status, due_at)
		values ($1, 2, $2, gen_random_uuid(), 4, 2, 1, 'permanent', 'dead', $3, $3, 'retrying', $3), ($1, 1, $2, gen_random_uuid(), 4, 0, 0, 'permanent', 'x', $3, $3, 'open', null)`, id, a, due)
	open := get[int64](r, "select id from keyline.dead_letters where status = 'open'")
	commandID, err := r.Command(t.Context(), core.Command{Record: id, Kind: core.CommandRetryDead, DeadLetter: open, Actor: "op", Reason: "why"}, "r")
	if err != nil {
		t.Fatal(err)
	}

	c := r.claimOne(id)
	loaded, err := r.Load(t.Context(), []core.LoadRequest{{Claim: c, Limit: 2}})
	if err != nil || len(loaded) != 1 {
		t.Fatal(loaded, err)
	}
	l := loaded[0]
	if l.Record != id || l.Token != c.Token || l.Key != "r" || l.Head != 8 || l.Base != 5 {
		t.Errorf("record: %+v", l)
	}
	// Two above the base, two above a's row; none above the parked one's.
	if got := seqs(l.Events); !slices.Equal(got, []int64{2, 3, 6, 7}) {
		t.Errorf("events %v", got)
	}
	if e := l.Events[0]; e.Type != "t2" || e.Version != 1 || e.Event.Key.Record != "r" || string(e.Payload) != "{}" || e.Headers != nil || e.CreatedAt.IsZero() {
		t.Errorf("event %+v", e)
	}
	want := core.Checkpoint{Record: id, Consumer: a, Seq: 1, State: core.Backoff, Attempt: 3, Granted: 1, Crashes: 2, NextAttemptAt: due, FirstFailedAt: due, ErrorCode: "boom", LiveFrom: 6}
	i := slices.IndexFunc(l.Checkpoints, func(c core.Checkpoint) bool { return c.Consumer == a })
	if len(l.Checkpoints) != 2 || i < 0 {
		t.Fatalf("checkpoints %+v", l.Checkpoints)
	}
	got := l.Checkpoints[i]
	if !got.NextAttemptAt.Equal(due) || !got.FirstFailedAt.Equal(due) {
		t.Errorf("times %v, %v", got.NextAttemptAt, got.FirstFailedAt)
	}
	got.NextAttemptAt, got.FirstFailedAt = due, due
	if got != want {
		t.Errorf("checkpoint %+v, want %+v", got, want)
	}
	if len(l.Retries) != 1 || l.Retries[0].Seq != 2 || l.Retries[0].Attempt != 4 || l.Retries[0].Granted != 2 || l.Retries[0].Crashes != 1 || !l.Retries[0].DueAt.Equal(due) {
		t.Errorf("retries %+v", l.Retries)
	}
	if len(l.Commands) != 1 || l.Commands[0].ID != commandID || l.Commands[0].Consumer != a || l.Commands[0].Seq != 1 || l.Commands[0].Dead == nil ||
		l.Commands[0].Dead.ID != open || !l.Commands[0].DeadOpen || l.Commands[0].Actor != "op" || l.Commands[0].Reason != "why" {
		t.Errorf("commands %+v", l.Commands)
	}
}

func TestLoadLeavesLostClaimsOut(t *testing.T) {
	r := newRig(t)
	id, other := r.append("r"), r.append("other")
	c, o := r.claimOne(id), r.claimOne(other)
	r.exec("update keyline.mailboxes set token = nextval('keyline.tokens') where record_id = $1", id)
	loaded, err := r.Load(t.Context(), []core.LoadRequest{{Claim: c, Limit: 1}, {Claim: o, Limit: 1}, {Claim: core.Claim{Record: 77, Token: 1}, Limit: 1}})
	if err != nil || len(loaded) != 1 || loaded[0].Record != other {
		t.Errorf("%+v, %v", loaded, err)
	}
	if none, err := r.Load(t.Context(), nil); none != nil || err != nil {
		t.Error(none, err)
	}
}

func TestLoadOfARecordWithoutEventsAboveItsBase(t *testing.T) {
	r := newRig(t)
	id := r.append("r")
	r.exec("update keyline.records set cursor = 1 where id = $1", id)
	l := r.load(r.claimOne(id))
	if l.Base != 1 || l.Head != 1 || len(l.Events) != 0 {
		t.Errorf("%+v", l)
	}
}

func TestLoadEventsReadsRangesInOrder(t *testing.T) {
	r := newRig(t)
	a, b := r.append("a", "t", "t", "t", "t"), r.append("b", "t", "t")
	events, err := r.LoadEvents(t.Context(), []core.EventRange{{Record: b, From: 1, Limit: 9}, {Record: a, From: 1, Limit: 2}})
	if err != nil {
		t.Fatal(err)
	}
	var got [][2]int64
	for _, e := range events {
		got = append(got, [2]int64{e.Record, e.Seq})
		if want := map[int64]string{a: "a", b: "b"}[e.Record]; e.Event.Key.Record != want {
			t.Errorf("key %q of record %d", e.Event.Key.Record, e.Record)
		}
	}
	if !slices.Equal(got, [][2]int64{{a, 2}, {a, 3}, {b, 2}}) {
		t.Errorf("%v", got)
	}
}

// Promise: a position beyond the stream passes no event over in silence.
func TestARecordWhosePositionIsBeyondItsStreamIsNotLoaded(t *testing.T) {
	r := newRig(t)
	whole, broken := r.append("whole"), r.append("broken")
	r.exec("update keyline.mailboxes set cursor = 5 where record_id = $1", broken)
	loaded, err := r.Load(t.Context(), []core.LoadRequest{{Claim: r.claimOne(broken), Limit: 9}, {Claim: r.claimOne(whole), Limit: 9}})
	if err != nil || len(loaded) != 1 || loaded[0].Record != whole {
		t.Errorf("%+v, %v", loaded, err)
	}
	r.exec("update keyline.mailboxes set claimed_by = null, claimed_at = null where record_id = $1", broken)
	claims, loaded, err := r.ClaimRecord(t.Context(), core.ClaimRequest{Worker: r.me, Limit: 1, Record: broken}, 9)
	if len(claims) != 1 || len(loaded) != 0 || err != nil {
		t.Errorf("by name: %+v, %+v, %v", claims, loaded, err)
	}
}

// shown are events as seqs, those where an answer was cut as negative ones.
func shown(events []core.Event) (list []int64) {
	for _, e := range events {
		n := e.Seq
		if e.Cut {
			n = -n
		}
		list = append(list, n)
	}
	return list
}

// Promise: of large events no more are kept than there is room for, at least one above each position, and where more were left out it says so.
func TestLargeEventsAreReadAFewAtATime(t *testing.T) {
	r := newRig(t)
	a := r.register(definition("a"))
	for range 12 {
		r.exec(`select from keyline.append('r', 't', jsonb_build_object('pad', repeat('x', $1::integer)))`, aheadBytes/3)
	}
	r.exec(`select from keyline.append('r', 't', jsonb_build_object('pad', repeat('x', $1::integer)))`, 2*aheadBytes)
	small := r.append("small", "t", "t", "t")
	id := r.record("r")
	r.exec("update keyline.mailboxes set cursor = 6 where record_id = $1", id)
	r.exec("insert into keyline.checkpoints (record_id, consumer_id, seq, state) values ($1, $2, 1, 'ready')", id, a)
	requests := []core.LoadRequest{{Claim: r.claimOne(id), Limit: 64}, {Claim: r.claimOne(small), Limit: 64}}
	loaded, err := r.Load(t.Context(), requests)
	if err != nil || len(loaded) != 2 {
		t.Fatal(loaded, err)
	}
	for _, l := range loaded {
		want := []int64{2, -3, 7, -8}
		if l.Record == small {
			want = []int64{1, 2, 3}
		}
		if got := shown(l.Events); !slices.Equal(got, want) {
			t.Errorf("record %d: %v, want %v", l.Record, got, want)
		}
	}
	// Fewer are asked for, until all that comes is kept; and more again when it is.
	for i, want := range [][]int64{{7, -8}, {7, -8}, {7, -8}, {7, -8}, {7, -8}} {
		events, err := r.LoadEvents(t.Context(), []core.EventRange{{Record: id, From: 6, Limit: 64}})
		if got := shown(events); err != nil || !slices.Equal(got, want) {
			t.Errorf("read %d: %v, %v", i, got, err)
		}
	}
	if most := r.ahead.most(64); most > 4 {
		t.Errorf("two have room, and %d are asked for", most)
	}
	events, err := r.LoadEvents(t.Context(), []core.EventRange{{Record: id, From: 11, Limit: 64}, {Record: id, From: 12, Limit: 1}, {Record: small, From: 0, Limit: 64}})
	if err != nil {
		t.Fatal(err)
	}
	if got := shown(events[:len(events)-2]); got[0] != -12 || !slices.Contains(got, 13) {
		t.Errorf("beside one that is larger than all there is room for: %v", got)
	}
	for range 8 {
		if _, err := r.LoadEvents(t.Context(), []core.EventRange{{Record: small, From: 0, Limit: 64}}); err != nil {
			t.Fatal(err)
		}
	}
	if most := r.ahead.most(64); most != 64 {
		t.Errorf("%d are asked for where all is small", most)
	}
}

func TestNewsTellsOfHeadsCommandsAndTheEpoch(t *testing.T) {
	r := newRig(t)
	id := r.append("r", "t", "t")
	epoch, news, err := r.News(t.Context(), []int64{id, 999})
	if err != nil || epoch != r.epoch() || len(news) != 1 || news[0] != (core.News{Record: id, Head: 2}) {
		t.Errorf("%d %+v %v", epoch, news, err)
	}
	r.register(definition("c"))
	if _, err := r.Command(t.Context(), core.Command{Record: id, Kind: core.CommandRetry, Actor: "op"}, "r"); err != nil {
		t.Fatal(err)
	}
	later, news, err := r.News(t.Context(), []int64{id})
	if err != nil || later <= epoch || len(news) != 1 || !news[0].Pending {
		t.Errorf("%d %+v %v", later, news, err)
	}
	if only, none, err := r.News(t.Context(), []int64{}); only != later || len(none) != 0 || err != nil {
		t.Errorf("without records: %d %v %v", only, none, err)
	}
}
