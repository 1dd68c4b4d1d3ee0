package supervisor

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/keylinehq/keyline/actors"
	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// gateTest is a gate whose beginnings and refusals are noted.
type gateTest struct {
	*gate
	clock     *clock.Fake
	consumers map[string]*core.Consumer
	begun     []*actors.Ticket
	refused   map[*actors.Ticket]time.Time
}

func newGateTest(most int, limits map[string]Limits) *gateTest {
	return newGateTestTx(most, most, limits)
}

func newGateTestTx(most, mostTx int, limits map[string]Limits) *gateTest {
	c := clock.NewFake(time.Unix(1000, 0))
	g := &gateTest{gate: newGate(c, most, mostTx, limits), clock: c, consumers: map[string]*core.Consumer{}, refused: map[*actors.Ticket]time.Time{}}
	g.begin = func(t *actors.Ticket) { g.begun = append(g.begun, t) }
	g.refuse = func(t *actors.Ticket, until time.Time) { g.refused[t] = until }
	return g
}

func (g *gateTest) ask(consumer string) (*actors.Ticket, actors.Verdict) {
	c := g.consumers[consumer]
	if c == nil {
		c = &core.Consumer{ID: int32(len(g.consumers) + 1), Name: consumer, Transactional: strings.HasPrefix(consumer, "tx")}
		g.consumers[consumer] = c
	}
	t := &actors.Ticket{Work: &core.Work{Consumer: c}}
	return t, g.Admit(t).Verdict
}

func (g *gateTest) names() []string {
	var names []string
	for _, t := range g.begun {
		names = append(names, t.Work.Consumer.Name)
	}
	return names
}

func TestGateLetsConsumersTakeTurns(t *testing.T) {
	g := newGateTest(1, nil)
	first, v := g.ask("a")
	if v != actors.Admitted {
		t.Fatal("the first is not admitted")
	}
	for range 3 {
		g.ask("a")
	}
	g.ask("b")
	g.ask("c")
	for next := first; ; {
		n := len(g.begun)
		g.Release(next, actors.Succeeded)
		if len(g.begun) == n {
			break
		}
		next = g.begun[n]
	}
	got := g.names()
	if len(got) != 5 || slices.Index(got, "b") > 2 || slices.Index(got, "c") > 2 {
		t.Errorf("order: %v", got)
	}
}

func TestGateKeepsEachConsumersLimit(t *testing.T) {
	g := newGateTest(10, map[string]Limits{"a": {MaxInFlight: 2}})
	one, _ := g.ask("a")
	g.ask("a")
	waits, v := g.ask("a")
	if v != actors.Queued {
		t.Fatal("the third is admitted")
	}
	if _, v := g.ask("b"); v != actors.Admitted {
		t.Error("another consumer waits behind it")
	}
	g.Release(one, actors.Succeeded)
	if len(g.begun) != 1 || g.begun[0] != waits {
		t.Errorf("begun: %v", g.names())
	}
	if g.Withdraw(waits) {
		t.Error("withdrawn after it has begun")
	}
	last, _ := g.ask("a")
	if !g.Withdraw(last) || g.Withdraw(last) {
		t.Error("withdraw takes it back once")
	}
}

func TestGateRefusesWhatIsQueuedWhenTheBreakerOpens(t *testing.T) {
	g := newGateTest(10, map[string]Limits{"a": {MaxInFlight: 1, Breaker: keylinetype.Breaker{MinRuns: 1, CoolDown: time.Minute}}})
	running, _ := g.ask("a")
	queued, _ := g.ask("a")
	if !g.Release(running, actors.Failed) {
		t.Fatal("the failure is not over the threshold")
	}
	if len(g.begun) != 0 {
		t.Error("a queued one begins while the trip is on its way")
	}
	c := g.consumers["a"]
	if _, v := g.ask("a"); v != actors.Refused {
		t.Error("one is admitted while the trip is on its way")
	}
	if !g.trip(c) || g.trip(c) {
		t.Error("the trip is news, once")
	}
	until := g.clock.Now().Add(time.Minute)
	if got := g.refused[queued]; !got.Equal(until) {
		t.Errorf("refused until %v, want %v", got, until)
	}
	late := &actors.Ticket{Work: &core.Work{Consumer: c}}
	if a := g.Admit(late); a.Verdict != actors.Refused || !a.Until.Equal(until) {
		t.Errorf("while open: %+v", a)
	}
	g.clock.Advance(time.Minute)
	probe := &actors.Ticket{Work: &core.Work{Consumer: c}}
	if a := g.Admit(probe); a.Verdict != actors.Admitted {
		t.Fatalf("the probe: %+v", a)
	}
	if a := g.Admit(late); a.Verdict != actors.Refused || !a.Until.After(g.clock.Now()) {
		t.Errorf("beside the probe: %+v", a)
	}
	g.Release(probe, actors.Nothing) // it was cancelled: another one probes
	if a := g.Admit(late); a.Verdict != actors.Admitted {
		t.Errorf("the next probe: %+v", a)
	}
	g.Release(late, actors.Succeeded)
	if h := g.health(); h[0].Breaker != BreakerClosed || h[0].Completed != 1 || h[0].Failed != 1 || h[0].Refused != 4 {
		t.Errorf("health: %+v", h)
	}
}

// The one who is to make the trip has failed: starts are held for a moment, not for ever.
func TestGateGoesOnWithoutATripThatNeverCame(t *testing.T) {
	g := newGateTest(10, map[string]Limits{"a": {MaxInFlight: 1, Breaker: keylinetype.Breaker{MinRuns: 1}}})
	running, _ := g.ask("a")
	queued, _ := g.ask("a")
	g.Release(running, actors.Failed)
	g.nudge()
	if len(g.begun) != 0 {
		t.Error("not held")
	}
	g.clock.Advance(overHold)
	g.nudge()
	if len(g.begun) != 1 || g.begun[0] != queued {
		t.Error("held for ever")
	}
}

// A queue that does not move is cut down when the worker fills up; one that
// moves fast, or has only just formed, is not.
func TestGateShedsQueuesThatDoNotMove(t *testing.T) {
	g := newGateTest(100, map[string]Limits{"slow": {MaxInFlight: 2}, "fast": {MaxInFlight: 2}})
	var running []*actors.Ticket
	for _, name := range []string{"slow", "fast"} {
		for range 50 {
			tk, v := g.ask(name)
			if v == actors.Admitted && name == "fast" {
				running = append(running, tk)
			}
		}
	}
	g.shed(250 * time.Millisecond)
	if len(g.refused) != 0 {
		t.Fatal("shed at once")
	}
	for range 5 {
		g.clock.Advance(250 * time.Millisecond)
		for range 15 {
			n := len(g.begun)
			g.Release(running[0], actors.Succeeded)
			running = append(running[1:], g.begun[n:]...)
			tk, _ := g.ask("fast")
			_ = tk
		}
		g.shed(250 * time.Millisecond)
	}
	kept := map[string]int{}
	for _, h := range g.health() {
		kept[h.Name] = h.Queued
	}
	if kept["slow"] != 2 || kept["fast"] != 48 {
		t.Errorf("kept: %v", kept)
	}
	for tk, until := range g.refused {
		if tk.Work.Consumer.Name != "slow" || !until.After(g.clock.Now()) {
			t.Errorf("refused: %s until %v", tk.Work.Consumer.Name, until)
		}
	}
}

// Those that need a connection wait for one in their queues, where others pass them by and they can be taken back.
func TestGateKeepsThoseThatWouldWaitForAConnectionOut(t *testing.T) {
	g := newGateTestTx(10, 2, nil)
	first, _ := g.ask("tx1")
	if _, v := g.ask("tx1"); v != actors.Admitted {
		t.Fatal("there are two connections")
	}
	waits, v := g.ask("tx1")
	if v != actors.Queued {
		t.Fatalf("a third is let in: %v", v)
	}
	if _, v := g.ask("tx2"); v != actors.Queued {
		t.Fatalf("another consumer's is let in: %v", v)
	}
	if _, v := g.ask("plain"); v != actors.Admitted {
		t.Fatalf("one that needs no connection waits: %v", v)
	}
	if !g.Withdraw(waits) {
		t.Fatal("it cannot be taken back")
	}
	g.Release(first, actors.Succeeded)
	if names := g.names(); !slices.Equal(names, []string{"tx2"}) {
		t.Fatalf("begun: %v", names)
	}
}

// Whatever comes: never more in flight than the limits, nobody waits while
// there is a place, every ticket is somewhere.
func TestGateNeverExceedsItsLimitsNorLosesATicket(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := []string{"a", "tx b", "tx c"}
		limits := map[string]Limits{}
		for _, n := range names {
			limits[n] = Limits{MaxInFlight: rapid.IntRange(1, 4).Draw(t, "limit"), Breaker: keylinetype.Breaker{MinRuns: 3, CoolDown: time.Second}}
		}
		most := rapid.IntRange(1, 6).Draw(t, "most")
		mostTx := rapid.IntRange(1, most).Draw(t, "most in a transaction")
		g := newGateTestTx(most, mostTx, limits)
		inFlight, queued := map[*actors.Ticket]bool{}, map[*actors.Ticket]bool{}
		pick := func(set map[*actors.Ticket]bool) *actors.Ticket {
			var list []*actors.Ticket
			for tk := range set {
				list = append(list, tk)
			}
			if len(list) == 0 {
				return nil
			}
			slices.SortFunc(list, func(a, b *actors.Ticket) int { return int(a.Work.Record - b.Work.Record) })
			return list[rapid.IntRange(0, len(list)-1).Draw(t, "which")]
		}
		for i := range 80 {
			g.clock.Advance(time.Duration(rapid.IntRange(0, 500).Draw(t, "ms")) * time.Millisecond)
			switch rapid.IntRange(0, 4).Draw(t, "act") {
			case 0, 1:
				tk, v := g.ask(names[rapid.IntRange(0, 2).Draw(t, "consumer")])
				tk.Work.Record = int64(i)
				switch v {
				case actors.Admitted:
					inFlight[tk] = true
				case actors.Queued:
					queued[tk] = true
				case actors.Refused:
				}
			case 2, 3:
				if tk := pick(inFlight); tk != nil {
					delete(inFlight, tk)
					if g.Release(tk, actors.Result(rapid.IntRange(0, 2).Draw(t, "result"))) {
						g.trip(tk.Work.Consumer)
					}
				}
			case 4:
				if tk := pick(queued); tk != nil {
					if !g.Withdraw(tk) {
						t.Fatal("a queued ticket cannot be withdrawn")
					}
					delete(queued, tk)
				}
			}
			for _, tk := range g.begun {
				if !queued[tk] {
					t.Fatal("begun without having been queued")
				}
				delete(queued, tk)
				inFlight[tk] = true
			}
			for tk := range g.refused {
				delete(queued, tk)
			}
			g.begun, g.refused = nil, map[*actors.Ticket]time.Time{}
			perConsumer, inTx := map[string]int{}, 0
			for tk := range inFlight {
				perConsumer[tk.Work.Consumer.Name]++
				if tk.Work.Consumer.Transactional {
					inTx++
				}
			}
			if len(inFlight) > most {
				t.Fatalf("%d in flight, at most %d", len(inFlight), most)
			}
			if inTx > mostTx {
				t.Fatalf("%d in a transaction, at most %d", inTx, mostTx)
			}
			for _, h := range g.health() {
				if h.InFlight != perConsumer[h.Name] || h.InFlight > limits[h.Name].MaxInFlight {
					t.Fatalf("%+v, in flight %d", h, perConsumer[h.Name])
				}
				if h.Queued > 0 && h.InFlight < limits[h.Name].MaxInFlight && len(inFlight) < most && (h.Name == "a" || inTx < mostTx) {
					t.Fatalf("%+v waits while there is a place", h)
				}
			}
			if g.queued != len(queued) {
				t.Fatalf("%d queued, want %d", g.queued, len(queued))
			}
		}
	})
}
