package supervisor

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/keylinehq/keyline/internal/core"
)

func TestTrustRunsFromTheBeginOfTheLastGoodRenewal(t *testing.T) {
	l := lease{length: 15 * time.Second, every: 5 * time.Second, begun: 0, due: 5 * time.Second}
	if !l.trusted(13*time.Second) || l.trusted(13500*time.Millisecond) {
		t.Error("it ends a tenth before the lease")
	}
	l.renewed(5 * time.Second) // its answer may have come at 12 s
	if l.ends() != 18500*time.Millisecond || l.due != 10*time.Second {
		t.Errorf("ends %v, due %v", l.ends(), l.due)
	}
	l.renewed(2 * time.Second)
	if l.ends() != 18500*time.Millisecond {
		t.Error("a late answer moves it back")
	}
	l.failed(10 * time.Second)
	if l.due != 10250*time.Millisecond || l.ends() != 18500*time.Millisecond {
		t.Errorf("after a failure: ends %v, due %v", l.ends(), l.due)
	}
	for range 20 {
		l.failed(11 * time.Second)
	}
	if l.due != 12250*time.Millisecond {
		t.Errorf("after many: due %v", l.due)
	}
}

func TestObserverMarksOnlyAWholeLeaseOfSilence(t *testing.T) {
	o := observer{self: 1, gap: 10 * time.Second}
	beats := []core.Beat{{Worker: 1, Beat: 1, Lease: 15 * time.Second}, {Worker: 2, Beat: 1, Lease: 15 * time.Second}}
	at := func(s int) time.Duration { return time.Duration(s) * time.Second }
	for s := 0; s <= 15; s += 5 {
		if lost := o.look(at(s), at(s)+time.Millisecond, beats); lost != nil {
			t.Fatalf("at %d s: %v", s, lost)
		}
	}
	lost := o.look(at(20), at(20), beats)
	if len(lost) != 1 || lost[0].Worker != 2 {
		t.Fatalf("at 20 s: %v", lost)
	}
	beats[1].Beat = 2
	if lost := o.look(at(25), at(25), beats); lost != nil {
		t.Fatalf("it has moved: %v", lost)
	}
}

func TestAnObserverWithAGraceWithoutEndMarksNobody(t *testing.T) {
	o := observer{self: 1, grace: math.MaxInt64, gap: time.Hour}
	beats := []core.Beat{{Worker: 2, Beat: 1, Lease: 15 * time.Second}}
	for s := range 5 {
		at := time.Duration(s) * time.Hour / 2
		if lost := o.look(at, at, beats); lost != nil {
			t.Fatalf("at %s: %v", at, lost)
		}
	}
}

func TestObserverForgetsOverAGap(t *testing.T) {
	beats := []core.Beat{{Worker: 2, Beat: 1, Lease: 15 * time.Second}}
	for name, second := range map[string][2]time.Duration{
		"a long pause between looks": {30 * time.Second, 30 * time.Second},
		"a look that took long":      {9 * time.Second, 25 * time.Second},
	} {
		o := observer{self: 1, gap: 10 * time.Second}
		o.look(0, 0, beats)
		o.look(second[0], second[1], beats)
		if lost := o.look(second[1]+8*time.Second, second[1]+8*time.Second, beats); lost != nil {
			t.Errorf("%s: %v", name, lost)
		}
	}
}

// Whatever the delays of renewals and looks, and whatever the offset of the two
// monotonic clocks: no worker is marked lost while it trusts its lease. A dead
// one is marked before long.
func TestObserverNeverKillsTheLiving(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const length = 15 * time.Second
		ms := func(name string, most int) time.Duration {
			return time.Duration(rapid.IntRange(0, most).Draw(t, name)) * time.Millisecond
		}
		l := lease{length: length, every: length / 3}
		offset := ms("offset", 1_000_000) // of the observer's clock
		o := observer{self: 1, gap: 2 * length / 3}
		dies := 10*time.Second + ms("dies", 60_000)
		var (
			beat        int64
			carriedOut  = time.Duration(-1) // when the renewal in flight changes the row
			answered    time.Duration       // when its answer is there
			begun       time.Duration
			lookBegun   = time.Duration(-1)
			lookReads   time.Duration
			lookEnds    time.Duration
			read        []core.Beat
			nextLook    = ms("first look", 5000)
			marked      time.Duration
			renewalOpen bool
		)
		l.renewed(0)
		for now := time.Duration(0); now < dies+120*time.Second; now += 50 * time.Millisecond {
			if now < dies {
				if !renewalOpen && now >= l.due {
					renewalOpen, begun = true, now
					carriedOut = now + ms("to the row", 12_000)
					answered = carriedOut + ms("to the worker", 12_000)
				}
			}
			if renewalOpen && carriedOut >= 0 && now >= carriedOut {
				beat++
				carriedOut = -1
			}
			if renewalOpen && now >= answered {
				renewalOpen = false
				if now < dies {
					l.renewed(begun)
				}
			}
			if lookBegun < 0 && now >= nextLook {
				lookBegun, lookReads = now, now+ms("look reads", 3000)
				lookEnds, read = lookReads+ms("look ends", 3000), nil
			}
			if lookBegun >= 0 && read == nil && now >= lookReads {
				read = []core.Beat{{Worker: 2, Beat: beat, Lease: length}}
			}
			if lookBegun >= 0 && now >= lookEnds {
				lost := o.look(lookBegun+offset, lookEnds+offset, read)
				lookBegun, nextLook = -1, now+length/3
				// The mark is a compare-and-set on the beat.
				if len(lost) > 0 && lost[0].Beat == beat {
					marked = now
					break
				}
			}
		}
		switch {
		case marked == 0:
			t.Fatal("a dead worker was never marked")
		case marked < dies && l.trusted(marked):
			t.Fatalf("marked at %v while it trusts its lease until %v", marked, l.ends())
		}
	})
}

func TestObserverForgetsThoseThatAreGone(t *testing.T) {
	o := observer{self: 1, gap: time.Minute}
	o.look(0, 0, []core.Beat{{Worker: 2, Lease: time.Second}, {Worker: 3, Lease: time.Second}})
	o.look(1, 1, []core.Beat{{Worker: 3, Lease: time.Second}})
	var known []int64
	for id := range o.seen {
		known = append(known, id)
	}
	if !slices.Equal(known, []int64{3}) {
		t.Errorf("known: %v", known)
	}
}
