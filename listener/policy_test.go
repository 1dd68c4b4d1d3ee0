package listener

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const ms = time.Millisecond

var tableTiming = Timing{
	Fallback: time.Second, Linger: 30 * ms, LingerPoll: 5 * ms, CatchUp: 10 * ms,
	DueLag: 100 * ms, DueEvery: time.Second, Rearm: 30 * time.Second, Ping: time.Second, Crowd: 5 * time.Second,
}

// Shorthands for steps: each is told the time and returns the effects.
type act func(p *Policy, now time.Duration) Effects

func dry(p *Policy, now time.Duration) Effects  { return p.Dry(now, 0, false) }
func busy(p *Policy, now time.Duration) Effects { return p.Busy(now) }
func tick(p *Policy, now time.Duration) Effects { return p.Tick(now) }
func up(p *Policy, now time.Duration) Effects   { return p.Link(now, true) }
func down(p *Policy, now time.Duration) Effects { return p.Link(now, false) }

func dueIn(d time.Duration) act {
	return func(p *Policy, now time.Duration) Effects { return p.Dry(now, d, true) }
}

func hear(payload string) act {
	return func(p *Policy, now time.Duration) Effects { return p.Heard(now, ParseNote(payload), []int32{4, 7}) }
}

func elected(term int64) act {
	return func(p *Policy, now time.Duration) Effects { p.Elected(now, term); return Effects{} }
}

func granted(term int64) act {
	return func(p *Policy, now time.Duration) Effects { return p.Granted(now, term) }
}

func crowded(term int64) act {
	return func(p *Policy, now time.Duration) Effects { return p.Crowded(now, term) }
}

func manyCalls(n int) act {
	return func(p *Policy, now time.Duration) Effects {
		for range n {
			p.Heard(now, ParseNote("42"), nil)
		}
		return Effects{}
	}
}

func lost(term int64) act {
	return func(p *Policy, now time.Duration) Effects { return p.Lost(now, term) }
}

func wake(c Cause, records ...int64) Effects {
	w := Wake{Causes: c, Records: records}
	w.Unbounded = c&(Granted|Fallback|Reconnected|CatchUp|Crowded) != 0
	return Effects{Wake: w}
}

type scriptStep struct {
	at    time.Duration
	do    act
	want  Effects
	state State
	next  time.Duration // 0: not looked at
}

// A due time can be so far away that it cannot be told: then it does not come, and least of all at once, again and again.
func TestADueTimeBeyondReckoningIsNotDue(t *testing.T) {
	for _, d := range []time.Duration{never, never - 1*ms, never - 1050*ms, never - 24*time.Hour} {
		for state, steps := range map[State][]act{Awake: {busy, dueIn(d)}, Asleep: {dueIn(d)}, Sentinel: {dueIn(d), elected(1), granted(1), dueIn(d)}} {
			p := NewPolicy(tableTiming, 0)
			p.Tick(0)
			p.Link(0, true)
			now := time.Second
			for _, do := range steps {
				do(&p, now)
			}
			if p.State() != state {
				t.Fatalf("%s, want %s", p.State(), state)
			}
			if next := p.Next(); next <= now {
				t.Errorf("%s, due in %s: it wants to be called at %s, and it is %s", state, d, next, now)
			}
			if e := p.Tick(now); e.Wake.Causes&Due != 0 {
				t.Errorf("%s, due in %s: it wakes for it", state, d)
			}
		}
	}
}

func TestPolicyTable(t *testing.T) {
	// The beginning of most scripts: a worker that is dry and connected.
	idle := []scriptStep{
		{at: 0, do: tick, want: wake(Fallback), state: Awake},
		{at: 1 * ms, do: up, want: wake(Reconnected), state: Awake},
		{at: 2 * ms, do: dry, want: Effects{Arm: 1}, state: Asleep, next: 1002 * ms},
	}
	inOffice := append(idle[:len(idle):len(idle)],
		scriptStep{at: 3 * ms, do: elected(1), state: Arming, next: 13 * ms},
		scriptStep{at: 4 * ms, do: granted(1), want: wake(Granted), state: Sentinel, next: 1004 * ms},
		scriptStep{at: 5 * ms, do: dry, state: Sentinel, next: 1004 * ms},
	)
	for name, script := range map[string][]scriptStep{
		"lingers after work, looking again, before it asks for the seat": {
			{at: 0, do: up, want: wake(Reconnected), state: Awake},
			{at: 10 * ms, do: busy, state: Awake},
			{at: 12 * ms, do: dry, state: Awake, next: 17 * ms},
			{at: 17 * ms, do: tick, want: wake(Linger), state: Awake},
			{at: 18 * ms, do: dry, state: Awake, next: 23 * ms},
			{at: 37 * ms, do: tick, want: wake(Linger), state: Awake},
			{at: 38 * ms, do: dry, state: Awake, next: 40 * ms},
			{at: 40 * ms, do: tick, want: wake(Linger), state: Awake},
			{at: 41 * ms, do: dry, want: Effects{Arm: 1}, state: Asleep},
		},
		"does not linger again without new work": append(inOffice[:6:6],
			scriptStep{at: 1004 * ms, do: tick, want: Effects{Wake: wake(Fallback).Wake, Ping: true}, state: Sentinel},
			scriptStep{at: 1005 * ms, do: dry, state: Sentinel, next: 2004 * ms},
		),
		"the sentinel answers a record's notification": append(inOffice[:6:6],
			scriptStep{at: 20 * ms, do: hear("42"), want: wake(Notified, 42), state: Sentinel},
		),
		"so does the elected one whose lock is not granted yet": append(idle[:3:3],
			scriptStep{at: 3 * ms, do: elected(1), state: Arming},
			scriptStep{at: 4 * ms, do: hear("42"), want: wake(Notified, 42), state: Arming},
		),
		"an idle one that is not elected does not": append(idle[:3:3],
			scriptStep{at: 4 * ms, do: hear("42"), state: Asleep},
		),
		"asks after many whether their senders stand in line, and not again at once": append(inOffice[:6:6],
			scriptStep{at: 20 * ms, do: manyCalls(pingAfter - 1), state: Sentinel, next: 1004 * ms},
			scriptStep{at: 30 * ms, do: hear("42"), want: wake(Notified, 42), state: Sentinel, next: 200 * ms},
			scriptStep{at: 200 * ms, do: tick, want: Effects{Ping: true}, state: Sentinel, next: 1004 * ms},
			scriptStep{at: 210 * ms, do: manyCalls(pingAfter), state: Sentinel, next: 400 * ms},
		),
		"stays awake where they do, so that they need not": append(inOffice[:6:6],
			scriptStep{at: 20 * ms, do: crowded(1), state: Sentinel, next: 30 * ms},
			scriptStep{at: 30 * ms, do: crowded(1), want: Effects{Wake: wake(Crowded).Wake, Disarm: true}, state: Awake},
			scriptStep{at: 31 * ms, do: busy, state: Awake},
			scriptStep{at: 32 * ms, do: dry, state: Awake, next: 37 * ms},
			scriptStep{at: 29*ms + crowdStay, do: dry, state: Awake, next: 34*ms + crowdStay},
			scriptStep{at: 60*ms + crowdStay, do: dry, want: Effects{Arm: 2}, state: Asleep},
		),
		"looks again where a line is gone the next time": append(inOffice[:6:6],
			scriptStep{at: 20 * ms, do: crowded(1), state: Sentinel, next: 30 * ms},
			scriptStep{at: 30 * ms, do: tick, want: Effects{Ping: true}, state: Sentinel, next: 1004 * ms},
			scriptStep{at: 21*ms + crowdFor, do: crowded(1), state: Sentinel, next: 31*ms + crowdFor},
		),
		"takes no news of a crowd from an earlier term": append(inOffice[:6:6],
			scriptStep{at: 20 * ms, do: crowded(0), state: Sentinel},
		),
		"nor does one that is awake": append(inOffice[:6:6],
			scriptStep{at: 6 * ms, do: busy, want: Effects{Disarm: true}, state: Awake},
			scriptStep{at: 7 * ms, do: hear("42"), state: Awake},
		),
		"every one in every state takes more and what it hosts is wanted for": append(idle[:3:3],
			scriptStep{at: 4 * ms, do: hear("more"), want: wake(More), state: Asleep},
			scriptStep{at: 4 * ms, do: hear("wants:9:3,7"), want: wake(Wanted, 9), state: Asleep},
			scriptStep{at: 4 * ms, do: hear("wants:9:3,5"), state: Asleep},
			scriptStep{at: 5 * ms, do: busy, want: Effects{Disarm: true}, state: Awake},
			scriptStep{at: 6 * ms, do: hear("more"), want: wake(More), state: Awake},
			scriptStep{at: 6 * ms, do: hear("wants:9:4"), want: wake(Wanted, 9), state: Awake},
			scriptStep{at: 6 * ms, do: hear("wants:9:5"), state: Awake},
		),
		"what it cannot read stands for a record, and it looks at everything": append(inOffice[:6:6],
			scriptStep{at: 20 * ms, do: hear("v9!"), want: Effects{Wake: Wake{Causes: Notified, Unbounded: true}}, state: Sentinel},
		),
		"ignored notifications do not put off the fallback poll": append(idle[:3:3],
			scriptStep{at: 500 * ms, do: hear("42"), state: Asleep, next: 1002 * ms},
			scriptStep{at: 900 * ms, do: hear("43"), state: Asleep, next: 1002 * ms},
			scriptStep{at: 1002 * ms, do: tick, want: wake(Fallback), state: Asleep, next: 2002 * ms},
		),
		"nor do those that it answers, and finds nothing": append(inOffice[:6:6],
			scriptStep{at: 900 * ms, do: hear("42"), want: wake(Notified, 42), state: Sentinel},
			scriptStep{at: 901 * ms, do: dry, state: Sentinel, next: 1004 * ms},
		),
		"the fallback poll comes while it is busy too": append(inOffice[:6:6],
			scriptStep{at: 900 * ms, do: busy, want: Effects{Disarm: true}, state: Awake, next: 1004 * ms},
			scriptStep{at: 1004 * ms, do: tick, want: wake(Fallback), state: Awake},
		),
		"while the grant is delayed it looks again, at growing intervals": append(idle[:3:3],
			scriptStep{at: 3 * ms, do: elected(1), state: Arming, next: 13 * ms},
			scriptStep{at: 13 * ms, do: tick, want: wake(CatchUp), state: Arming, next: 33 * ms},
			scriptStep{at: 33 * ms, do: tick, want: wake(CatchUp), state: Arming, next: 73 * ms},
			scriptStep{at: 40 * ms, do: granted(1), want: wake(Granted), state: Sentinel, next: 1040 * ms},
		),
		"a long wait for a lock is broken off and begun again": append(idle[:3:3],
			scriptStep{at: 30002 * ms, do: tick, want: Effects{Wake: wake(Fallback).Wake, Arm: 2}, state: Asleep},
			scriptStep{at: 30003 * ms, do: granted(1), state: Asleep},
			scriptStep{at: 30003 * ms, do: elected(1), state: Asleep},
			scriptStep{at: 30004 * ms, do: elected(2), state: Arming},
		),
		"a grant that comes after work did is not believed": append(idle[:3:3],
			scriptStep{at: 3 * ms, do: elected(1), state: Arming},
			scriptStep{at: 4 * ms, do: busy, want: Effects{Disarm: true}, state: Awake},
			scriptStep{at: 5 * ms, do: granted(1), state: Awake},
		),
		"a lost session begins a new cycle": append(inOffice[:6:6],
			scriptStep{at: 20 * ms, do: lost(1), want: Effects{Arm: 2}, state: Asleep},
			scriptStep{at: 21 * ms, do: hear("42"), state: Asleep},
			scriptStep{at: 22 * ms, do: lost(1), state: Asleep},
			scriptStep{at: 23 * ms, do: elected(2), state: Arming},
			scriptStep{at: 24 * ms, do: granted(2), want: wake(Granted), state: Sentinel},
		),
		"a lost session of one that is awake matters to nobody": append(inOffice[:6:6],
			scriptStep{at: 20 * ms, do: busy, want: Effects{Disarm: true}, state: Awake},
			scriptStep{at: 21 * ms, do: lost(1), state: Awake},
		),
		"without notifications nobody takes the seat": {
			{at: 0, do: tick, want: wake(Fallback), state: Awake},
			{at: 1 * ms, do: dry, state: Asleep, next: 1001 * ms},
			{at: 1001 * ms, do: tick, want: wake(Fallback), state: Asleep},
		},
		"who loses them gives it up, and takes part again when they are back": append(inOffice[:6:6],
			scriptStep{at: 20 * ms, do: down, want: Effects{Disarm: true}, state: Asleep},
			scriptStep{at: 21 * ms, do: granted(1), state: Asleep},
			scriptStep{at: 22 * ms, do: busy, state: Awake},
			scriptStep{at: 90 * ms, do: dry, state: Asleep},
			scriptStep{at: 95 * ms, do: up, want: Effects{Wake: wake(Reconnected).Wake, Arm: 2}, state: Asleep},
		),
		"the sentinel is woken when work is due": append(inOffice[:6:6],
			scriptStep{at: 6 * ms, do: dueIn(50 * ms), state: Sentinel, next: 56 * ms},
			scriptStep{at: 7 * ms, do: dueIn(20 * ms), state: Sentinel, next: 27 * ms},
			scriptStep{at: 27 * ms, do: tick, want: wake(Due), state: Sentinel, next: 1004 * ms},
		),
		"what is due and cannot be claimed is tried at growing intervals": append(inOffice[:6:6],
			scriptStep{at: 6 * ms, do: dueIn(0), state: Sentinel, next: 11 * ms},
			scriptStep{at: 11 * ms, do: tick, want: wake(Due), state: Sentinel, next: 1004 * ms},
			scriptStep{at: 11 * ms, do: dueIn(-5 * ms), state: Sentinel, next: 21 * ms},
			scriptStep{at: 21 * ms, do: tick, want: wake(Due), state: Sentinel},
			scriptStep{at: 21 * ms, do: dueIn(-15 * ms), state: Sentinel, next: 41 * ms},
			scriptStep{at: 22 * ms, do: busy, want: Effects{Disarm: true}, state: Awake},
			scriptStep{at: 60 * ms, do: dueIn(0), want: Effects{Arm: 2}, state: Asleep},
			scriptStep{at: 61 * ms, do: elected(2), state: Arming, next: 65 * ms},
		),
		"the others leave due work to it for a moment, and look once a second": append(idle[:3:3],
			scriptStep{at: 3 * ms, do: dueIn(50 * ms), state: Asleep, next: 153 * ms},
			scriptStep{at: 153 * ms, do: tick, want: wake(Due), state: Asleep},
			scriptStep{at: 154 * ms, do: dueIn(50 * ms), state: Asleep, next: 1002 * ms},
			scriptStep{at: 1002 * ms, do: tick, want: wake(Fallback), state: Asleep, next: 1153 * ms},
		),
	} {
		t.Run(name, func(t *testing.T) {
			p := NewPolicy(tableTiming, 0)
			for i, s := range script {
				if diff := cmp.Diff(s.want, s.do(&p, s.at)); diff != "" {
					t.Fatalf("step %d at %v: effects (-want +got):\n%s", i, s.at, diff)
				}
				if p.State() != s.state {
					t.Fatalf("step %d at %v: state %v, want %v", i, s.at, p.State(), s.state)
				}
				if s.next != 0 && p.Next() != s.next {
					t.Fatalf("step %d at %v: next at %v, want %v", i, s.at, p.Next(), s.next)
				}
			}
		})
	}
}

// What stands in line once is believed for a moment, what stands there again and
// again for longer; a calm time begins anew.
func TestPolicyBelievesALineForAsLongAsItComesBack(t *testing.T) {
	p := NewPolicy(tableTiming, 0)
	now := ms
	p.Link(now, true)
	p.Dry(now, 0, false)
	awake := func() time.Duration {
		p.Elected(now, p.term)
		p.Granted(now, p.term)
		p.Crowded(now, p.term)
		now += crowdAgain
		if p.Crowded(now, p.term); p.State() != Awake {
			t.Fatalf("%v: a line that stays, and it is %v", now, p.State())
		}
		from := now
		for p.State() == Awake {
			now += ms
			p.Dry(now, 0, false)
		}
		return now - from - tableTiming.Linger
	}
	var got []time.Duration
	for range 4 {
		got = append(got, awake())
	}
	now += tableTiming.Crowd
	got = append(got, awake())
	want := []time.Duration{250 * ms, 1000 * ms, 4000 * ms, 5000 * ms, 250 * ms}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("awake for (-want +got)\n%s", diff)
	}
}
