package sim

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

var start = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func newTwin(t *testing.T) (*Twin, int64, int64) {
	t.Helper()
	tw := NewTwin(start, keylinetype.Independent)
	tw.Register(core.Consumer{Name: "a", Types: []string{"*"}})
	return tw, tw.Join(), tw.NewRecord(keylinetype.Key{Record: "r"})
}

func claimOne(t *testing.T, tw *Twin, worker int64) core.Claim {
	t.Helper()
	claims, ok := tw.Claim(core.ClaimRequest{Worker: worker, Limit: 1})
	if !ok || len(claims) != 1 {
		t.Fatalf("claim: %v, %v", claims, ok)
	}
	return claims[0]
}

func TestTwinSettleSeesAppenderInFlight(t *testing.T) {
	tw, w, r := newTwin(t)
	tw.Append(r, NewEvent{Type: "x"})
	c := claimOne(t, tw, w)
	a := tw.BeginAppend(r, NewEvent{Type: "x"})
	settle := core.Flush{Record: r, Token: c.Token, Head: 1, Cursor: 1, Then: core.Settle}
	if res := tw.Flush(w, tw.Epoch(), settle); res.Status != core.FlushKept || !res.Busy {
		t.Fatalf("settle beside an appender: %+v", res)
	}
	a.Commit()
	if res := tw.Flush(w, tw.Epoch(), settle); res.Status != core.FlushKept || res.Head != 2 || res.Busy {
		t.Fatalf("settle with a moved head: %+v", res)
	}
	settle.Head, settle.Cursor = 2, 2
	if res := tw.Flush(w, tw.Epoch(), settle); res.Status != core.FlushGone {
		t.Fatalf("settle at head: %+v", res)
	}
	if res := tw.Flush(w, tw.Epoch(), settle); res.Status != core.FlushFenced {
		t.Fatalf("a repeated settle: %+v", res)
	}
}

func TestTwinFencesLostClaims(t *testing.T) {
	tw, w, r := newTwin(t)
	tw.Append(r, NewEvent{Type: "x"})
	c := claimOne(t, tw, w)
	tw.MarkLost(w)
	if n := tw.Recover(10); n != 1 {
		t.Fatalf("recovered %d", n)
	}
	if res := tw.Flush(w, tw.Epoch(), core.Flush{Record: r, Token: c.Token, Head: 1, Cursor: 1}); res.Status != core.FlushFenced {
		t.Fatalf("flush of a lost claim: %+v", res)
	}
	if tw.Position(r, 1) != 0 {
		t.Fatal("a fenced flush moved a position")
	}
	w2 := tw.Join()
	if got := claimOne(t, tw, w2); got.Crashes != 1 || !got.Unclean || got.Token <= c.Token {
		t.Fatalf("claim after recovery: %+v", got)
	}
}

func TestTwinHandBackWants(t *testing.T) {
	tw, w, r := newTwin(t)
	b := tw.Register(core.Consumer{Name: "b", Types: []string{"*"}})
	tw.Append(r, NewEvent{Type: "x"})
	c := claimOne(t, tw, w)
	back := core.Flush{Record: r, Token: c.Token, Head: 1, Cursor: 1, Then: core.HandBack, Wants: []int32{b}, WantsDueAt: start,
		Upserts: []core.Checkpoint{{Record: r, Consumer: b, State: core.Ready}}}
	if res := tw.Flush(w, tw.Epoch(), back); res.Status != core.FlushGone {
		t.Fatalf("hand-back: %+v", res)
	}
	if claims, _ := tw.Claim(core.ClaimRequest{Worker: w, Limit: 1, Hosted: []int32{1}}); len(claims) != 0 {
		t.Fatalf("a worker that hosts nothing wanted claimed %v", claims)
	}
	if claims, _ := tw.Claim(core.ClaimRequest{Worker: w, Limit: 1, Hosted: []int32{1, b}}); len(claims) != 1 {
		t.Fatal("a host of what is wanted could not claim")
	}
}

func TestTwinOpenHandleTxKeepsClaimsAway(t *testing.T) {
	tw, w, r := newTwin(t)
	tw.Append(r, NewEvent{Type: "x"})
	c := claimOne(t, tw, w)
	tw.Flush(w, tw.Epoch(), core.Flush{Record: r, Token: c.Token, Head: 1, Upserts: []core.Checkpoint{{Record: r, Consumer: 1, State: core.Ready}}})
	reg := tw.Registry(nil)
	x := tw.BeginTx(w, core.Work{Record: r, Token: c.Token, Consumer: reg.Consumer(1), Checkpoint: core.Checkpoint{Seq: 0}})
	tw.MarkLost(w)
	tw.Recover(1)
	w2 := tw.Join()
	if claims, _ := tw.Claim(core.ClaimRequest{Worker: w2, Limit: 1}); len(claims) != 0 {
		t.Fatal("claimed beside an open HandleTx")
	}
	if !x.Commit(&core.Booking{Checkpoint: core.Checkpoint{Record: r, Consumer: 1, Seq: 1, State: core.Ready}}) {
		t.Fatal("the commit was fenced")
	}
	if claimOne(t, tw, w2); tw.Position(r, 1) != 1 {
		t.Fatal("the commit did not count")
	}
}

func TestTwinHandleTxIsFencedByItsRow(t *testing.T) {
	tw, w, r := newTwin(t)
	tw.Append(r, NewEvent{Type: "x"}, NewEvent{Type: "x"})
	c := claimOne(t, tw, w)
	row := func(seq int64) core.Checkpoint {
		return core.Checkpoint{Record: r, Consumer: 1, Seq: seq, State: core.Ready}
	}
	tw.Flush(w, tw.Epoch(), core.Flush{Record: r, Token: c.Token, Head: 2, Upserts: []core.Checkpoint{row(0)}})
	work := core.Work{Record: r, Token: c.Token, Consumer: tw.Registry(nil).Consumer(1), Fence: 0}
	x := tw.BeginTx(w, work)
	tw.Flush(w, tw.Epoch(), core.Flush{Record: r, Token: c.Token, Head: 2, Upserts: []core.Checkpoint{row(2)}})
	if x.Commit(&core.Booking{Checkpoint: row(1)}) || tw.Position(r, 1) != 2 {
		t.Fatal("a commit moved a row that was not where it was expected")
	}
}

func TestTwinAsDeliveries(t *testing.T) {
	tw, w, r := newTwin(t)
	ctx := context.Background()
	d := &Deliveries{Twin: tw, Worker: w, Local: map[string]Local{"a": {Window: 2}}}
	if _, ok, _ := d.NextDue(ctx, nil); ok {
		t.Fatal("something is due")
	}
	tw.Append(r, NewEvent{Type: "x"})
	if in, ok, _ := d.NextDue(ctx, nil); !ok || in != 0 {
		t.Fatalf("next due: %v, %v", in, ok)
	}
	claims, err := d.Claim(ctx, core.ClaimRequest{Worker: w, Limit: 1})
	if err != nil || len(claims) != 1 {
		t.Fatalf("claim: %v, %v", claims, err)
	}
	reg, _ := d.Registry(ctx)
	if c := reg.Consumer(1); !c.Hosted || c.Window != 2 {
		t.Fatalf("registry: %+v", c)
	}
	loaded, _ := d.Load(ctx, []core.LoadRequest{{Claim: claims[0], Limit: 10}, {Claim: core.Claim{Record: r, Token: 99}}})
	if len(loaded) != 1 || loaded[0].Head != 1 || len(loaded[0].Events) != 1 {
		t.Fatalf("load: %+v", loaded)
	}
	tw.Append(r, NewEvent{Type: "x"})
	if epoch, news, _ := d.News(ctx, []int64{r}); epoch != reg.Epoch || news[0].Head != 2 {
		t.Fatalf("news: %v, %+v", epoch, news)
	}
	var res core.FlushResult
	d.Flush(&core.Flush{Record: r, Token: claims[0].Token, Head: 2, Cursor: 2, Then: core.Settle}, reg.Epoch, func(x core.FlushResult) { res = x })
	if res.Status != core.FlushGone {
		t.Fatalf("settle: %+v", res)
	}
	tw.MarkLost(w)
	if _, err := d.Claim(ctx, core.ClaimRequest{Worker: w}); !errors.Is(err, keylinetype.ErrFenced) {
		t.Fatalf("claim of a lost worker: %v", err)
	}
}
