package supervisor

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func testPace() *pace {
	return newPace(paceConfig{minBatch: 50, maxBatch: 500, poll: 5 * time.Millisecond, moreEvery: 500 * time.Millisecond, calm: 1000})
}

func TestPaceAdaptsItsBatch(t *testing.T) {
	p := testPace()
	var limits []int
	for range 5 {
		a := p.decide(0, 2000)
		limits = append(limits, a.limit)
		p.claimed(0, time.Second, a, a.limit)
	}
	if got := limits; got[0] != 50 || got[1] != 100 || got[4] != 500 {
		t.Errorf("full claims: %v", got)
	}
	a := p.decide(0, 2000)
	if a.limit != 500 || a.unbounded {
		t.Errorf("at full load: %+v", a)
	}
	busy, dry := p.claimed(0, time.Second, a, 3)
	if !busy || dry || p.batch != 250 { // busy still, by what came before
		t.Errorf("a few: busy %v, dry %v, batch %d", busy, dry, p.batch)
	}
	if a := p.decide(0, 2000); a.limit != 0 || a.until != 5*time.Millisecond {
		t.Errorf("it polls: %+v", a)
	}
	if a := p.decide(5*time.Millisecond, 2000); !a.unbounded {
		t.Errorf("and then looks at everything: %+v", a)
	}
}

func TestPaceIsDryOnlyAfterALookAtEverything(t *testing.T) {
	p := testPace()
	a := p.decide(0, 2000)
	p.claimed(0, time.Second, a, a.limit) // full: the next goes on from here
	a = p.decide(0, 2000)
	if busy, dry := p.claimed(0, time.Second, a, 0); a.unbounded || busy || dry {
		t.Fatalf("dry after a bounded claim: %+v", a)
	}
	a = p.decide(0, 2000)
	if busy, dry := p.claimed(0, time.Second, a, 0); !a.unbounded || busy || !dry {
		t.Fatalf("not dry after a look at everything: %+v", a)
	}
	if a := p.decide(time.Hour, 2000); a.limit != 0 || a.until != never {
		t.Errorf("it sleeps until it is woken: %+v", a)
	}
	p.wakeUp(Wake{Unbounded: true, Cause: "granted"})
	if a := p.decide(time.Hour, 2000); a.limit == 0 || !a.unbounded {
		t.Errorf("after a grant: %+v", a)
	}
}

func TestPaceClaimsNamedRecordsFirst(t *testing.T) {
	p := testPace()
	p.claimed(0, time.Second, p.decide(0, 2000), 0)
	p.wakeUp(Wake{Records: []int64{7}})
	p.wakeUp(Wake{Records: []int64{8}})
	if a := p.decide(0, 2000); len(a.records) != 2 {
		t.Fatalf("named: %+v", a)
	}
	p.claimedRecords(0, p.decide(0, 2000), 2)
	if a := p.decide(0, 2000); len(a.records) != 0 || a.limit == 0 || !a.unbounded {
		t.Errorf("then whatever is due: %+v", a)
	}
	for record := range int64(recordsAtOnce + 1) {
		p.wakeUp(Wake{Records: []int64{record}})
	}
	if a := p.decide(0, 2000); len(a.records) != 0 || !a.unbounded {
		t.Errorf("many are claimed with everything else: %+v", a)
	}
}

func TestPaceStaysDryWhereItGetsWhatItIsCalledFor(t *testing.T) {
	call := Wake{Records: []int64{7}}
	for name, c := range map[string]struct {
		wakes []Wake
		got   int
		calm  bool
	}{
		"one record":                 {[]Wake{call}, 1, true},
		"gone already":               {[]Wake{call}, 0, false},
		"with something that is due": {[]Wake{call, {Look: true}}, 1, false},
		"with a look at everything":  {[]Wake{{Unbounded: true}, call}, 1, false},
	} {
		p := testPace()
		p.claimed(0, 0, p.decide(0, 2000), 0)
		p.saidDry(0, time.Minute, true)
		for _, w := range c.wakes {
			p.wakeUp(w)
		}
		busy := p.claimedRecords(0, p.decide(0, 2000), c.got)
		a := p.decide(0, 2000)
		if busy || (a.limit == 0) != c.calm || c.calm && !p.dueAgain(0, time.Second) {
			t.Errorf("%s: busy %v, then %+v", name, busy, a)
		}
	}
}

func TestPaceOwesALookAfterACallThatCameToNothing(t *testing.T) {
	p := testPace()
	p.claimed(0, 0, p.decide(0, 2000), 0)
	p.saidDry(0, time.Minute, true)
	p.wakeUp(Wake{Records: []int64{7}})
	p.claimedRecords(0, p.decide(0, 2000), 0)
	p.wakeUp(Wake{Records: []int64{8}})
	p.claimedRecords(0, p.decide(0, 2000), 1)
	if a := p.decide(0, 2000); a.limit == 0 || !a.unbounded || len(a.records) > 0 {
		t.Errorf("the second call hides the first: %+v", a)
	}
}

func TestPaceIsBusyWhereMoreComesThanCallsAreWorth(t *testing.T) {
	p := testPace()
	p.claimed(0, 0, p.decide(0, 2000), 0)
	p.saidDry(0, 0, false)
	one := func(now time.Duration) bool {
		p.wakeUp(Wake{Records: []int64{7}})
		return p.claimedRecords(now, p.decide(now, 2000), 1)
	}
	now := time.Duration(0)
	for range 1000 { // 900 a second
		now += time.Second / 900
		if one(now) {
			t.Fatalf("busy after %v at 900 a second", now)
		}
	}
	was := now
	for !one(now) { // 2,000 a second
		if now += time.Second / 2000; now > was+time.Second {
			t.Fatal("calm at 2,000 a second")
		}
	}
	if a := p.decide(now, 2000); a.limit == 0 || p.dueAgain(now, 0) {
		t.Errorf("busy, and it does not go on by itself: %+v", a)
	}
	if now += time.Second; one(now) {
		t.Error("busy a second later")
	}
}

func TestPacePollsAsOftenAsClaimsAreQuick(t *testing.T) {
	for took, pause := range map[time.Duration]time.Duration{
		100 * time.Microsecond: pollLeast, 2 * time.Millisecond: pollShare * 2 * time.Millisecond, time.Second: 5 * time.Millisecond,
	} {
		p := testPace()
		p.claimed(0, took, p.decide(0, 2000), 1)
		if a := p.decide(0, 2000); a.limit != 0 || a.until != pause {
			t.Errorf("a claim of %v: %+v", took, a)
		}
	}
}

func TestPaceWaitsForRoom(t *testing.T) {
	p := testPace()
	a := p.decide(0, 2000)
	p.claimed(0, time.Second, a, a.limit)
	a = p.decide(0, 10)
	if a.limit != 0 || a.room != p.batch || a.until != 5*time.Millisecond || !a.busy || !a.more {
		t.Fatalf("too little room: %+v", a)
	}
	if a := p.decide(time.Millisecond, 10); a.more {
		t.Error("it calls for others too often")
	}
	if a := p.decide(5*time.Millisecond, 10); a.limit != 10 {
		t.Errorf("then it takes what fits: %+v", a)
	} else {
		p.claimed(5*time.Millisecond, time.Second, a, 10)
	}
	p.decide(10*time.Millisecond, 0)
	if a := p.decide(15*time.Millisecond, 0); a.limit != 0 || a.room != 1 || a.until != never {
		t.Errorf("no room at all: %+v", a)
	}
	p.wakeUp(Wake{})
	if a := p.decide(15*time.Millisecond, 0); a.limit != 0 || !a.busy {
		t.Errorf("woken without room: %+v", a)
	}
	if a := p.decide(15*time.Millisecond, 1); a.limit != 1 {
		t.Errorf("one place: %+v", a)
	}
}

func TestPaceSaysDryAgainForAnEarlierDueTime(t *testing.T) {
	p := testPace()
	if p.dueAgain(0, 1) {
		t.Error("before it is dry")
	}
	p.claimed(0, time.Second, p.decide(0, 1), 0)
	p.saidDry(0, time.Minute, true)
	if p.dueAgain(time.Second, time.Minute) {
		t.Error("a later one")
	}
	if !p.dueAgain(time.Second, time.Second) || p.dueAgain(time.Second, time.Second) {
		t.Error("an earlier one, once")
	}
	p.saidDry(0, 0, false)
	if !p.dueAgain(0, time.Hour) {
		t.Error("one where there was none")
	}
	p.wakeUp(Wake{})
	p.claimed(0, time.Second, p.decide(0, 100), 1)
	if p.dueAgain(0, 0) {
		t.Error("it is awake")
	}
}

func TestPaceLooksAtEverythingAfterAFailure(t *testing.T) {
	p := testPace()
	a := p.decide(0, 2000)
	p.claimed(0, time.Second, a, a.limit)
	p.failed(time.Second)
	if a := p.decide(0, 2000); a.limit != 0 {
		t.Errorf("at once: %+v", a)
	}
	if a := p.decide(time.Second, 2000); !a.unbounded {
		t.Errorf("bounded: %+v", a)
	}
}

// Whatever happens, the loop never asks for more than there is room for, and
// while it has neither been woken nor a time to look again, it has said Dry.
func TestPaceNeverSleepsWithoutHavingLooked(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := testPace()
		now, dry, look := time.Duration(0), false, false
		for range 60 {
			now += time.Duration(rapid.IntRange(0, 10).Draw(t, "ms")) * time.Millisecond
			free := rapid.IntRange(0, 600).Draw(t, "free")
			if rapid.IntRange(0, 3).Draw(t, "wake") == 0 {
				w := Wake{Unbounded: rapid.Bool().Draw(t, "unbounded"), Look: rapid.Bool().Draw(t, "look"),
					Records: make([]int64, rapid.IntRange(0, 5).Draw(t, "records"))}
				p.wakeUp(w)
				look = look || w.Unbounded || w.Look || len(w.Records) == 0
			}
			a := p.decide(now, free)
			if a.limit > free {
				t.Fatalf("%d for %d places", a.limit, free)
			}
			switch {
			case a.limit == 0 && a.until == never && a.room == 0 && !dry:
				t.Fatal("asleep without having said so")
			case a.limit == 0 && (a.until != never || a.room > 0):
				dry = dry && !a.busy // it has said the opposite
			case a.limit == 0:
			case len(a.records) > 0:
				got := rapid.IntRange(0, len(a.records)).Draw(t, "got")
				busy := p.claimedRecords(now, a, got)
				dry = dry && !look && !busy && got == len(a.records) // it has what it was called for
			case rapid.IntRange(0, 9).Draw(t, "fails") == 0:
				dry = false
				p.failed(now)
			default:
				_, dry = p.claimed(now, time.Second, a, rapid.IntRange(0, a.limit).Draw(t, "got"))
				look = false
				if dry {
					p.saidDry(now, 0, false)
				}
			}
		}
	})
}

// What is due beyond all that a duration can tell is not due again at once.
func TestPaceBearsADueTimeBeyondReckoning(t *testing.T) {
	for _, d := range []time.Duration{math.MaxInt64, math.MaxInt64 - time.Second} {
		const now = time.Hour
		p := testPace()
		p.saidDry(now, d, true)
		if _, _, known := p.stillDry(now + time.Minute); !known {
			t.Errorf("due in %s: it is asked for again", d)
		}
		if p.dueAgain(now, d) {
			t.Errorf("due in %s: it is said again", d)
		}
		if !p.dueAgain(now, time.Second) {
			t.Errorf("due in %s: what is due sooner is not said", d)
		}
	}
}
