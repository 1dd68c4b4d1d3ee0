package actors

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/keylinehq/keyline/internal/core"
)

// Handlers that block do not hold up each other, however many they are; the
// goroutines are used again, and end with the crew.
func TestCrewRunsHandlersSideBySideAndReusesItsGoroutines(t *testing.T) {
	const n = 3 * idleHands
	var running atomic.Int64
	full, release := make(chan struct{}), make(chan struct{})
	env := &Env{Gate: &openGate{}, Pairs: NewPairs(), Crew: NewCrew(), Clock: clockForTests(),
		Runner: runFunc(func(_ context.Context, w *core.Work) core.Outcome {
			if running.Add(1) == n {
				close(full)
			}
			<-release
			if w.Record%2 == 0 {
				runtime.Goexit() // takes its goroutine with it
			}
			return core.Outcome{}
		})}
	seat := NewSeat(env, nil)
	seat.gone.Store(true) // nobody to answer to
	var tickets []*Ticket
	for i := range n {
		tk := &Ticket{seat: seat, Work: &core.Work{Record: int64(i), Consumer: &core.Consumer{ID: 1}}}
		tk.state.Store(sent)
		tickets = append(tickets, tk)
		env.Crew.run(context.Background(), tk)
	}
	receive(t, "all run at a time", full)
	close(release)
	eventually(t, "all ended", func() bool {
		for _, tk := range tickets {
			if tk.state.Load() != done {
				return false
			}
		}
		return true
	})
	eventually(t, "idle goroutines are kept, up to a limit", func() bool {
		env.Crew.mu.Lock()
		defer env.Crew.mu.Unlock()
		return len(env.Crew.idle) == idleHands
	})
	env.Crew.Close()
	env.Crew.Close()
	// After its end it still runs what is given to it.
	last := &Ticket{seat: seat, Work: &core.Work{Record: 1, Consumer: &core.Consumer{ID: 2}}}
	last.state.Store(sent)
	env.Crew.run(context.Background(), last)
	eventually(t, "a late one", func() bool { return last.state.Load() == done })
}

// Many runs of one pair under one claim, as restarts of its record leave them:
// one holds the pair, the others follow one by one, those that withdraw do not.
func TestPairsLetOneRunAfterTheOther(t *testing.T) {
	gate := &openGate{admit: func(*Ticket) Admission { return Admission{Verdict: Queued} }}
	env := &Env{Gate: gate, Pairs: NewPairs(), Clock: clockForTests()}
	seat := NewSeat(env, nil)
	ticket := func(token int64) *Ticket {
		tk := &Ticket{seat: seat, Work: &core.Work{Record: 1, Token: token, Consumer: &core.Consumer{ID: 1}}}
		tk.state.Store(waiting)
		return tk
	}
	first, second, third, fourth := ticket(1), ticket(1), ticket(1), ticket(1)
	for _, tk := range []*Ticket{first, second, third, fourth} {
		tk.start()
	}
	if gate.queue.Len() != 1 {
		t.Fatalf("%d of one pair at the gate", gate.queue.Len())
	}
	if !second.withdraw() || second.withdraw() {
		t.Fatal("withdraw")
	}
	third.void()
	env.Gate.Withdraw(first)
	env.Pairs.leave(first)
	if got := gate.queue.Pop(); got != fourth {
		t.Fatal("next is not the one that is left")
	}
	env.Pairs.leave(fourth)
	for i := range env.Pairs.shards {
		if s := &env.Pairs.shards[i]; len(s.owners)+len(s.waiting) != 0 {
			t.Errorf("left behind: %v %v", s.owners, s.waiting)
		}
	}
}

// Starts, withdrawals, refusals and ends from many goroutines: never two of a
// pair at a time, and nothing stays reserved.
func TestPairsUnderStress(t *testing.T) {
	var busy [4]atomic.Int32
	env := &Env{Gate: &openGate{}, Pairs: NewPairs(), Clock: clockForTests()}
	seat := NewSeat(env, nil)
	var group sync.WaitGroup
	for g := range 8 {
		group.Go(func() {
			for i := range 500 {
				record := int64((g + i) % len(busy))
				tk := &Ticket{seat: seat, Work: &core.Work{Record: record, Token: int64(g), Consumer: &core.Consumer{ID: 1}}}
				tk.state.Store(refused) // admit() will not send it anywhere
				if ok, _ := env.Pairs.enter(tk); ok {
					if busy[record].Add(1) != 1 {
						t.Error("two of a pair")
					}
					busy[record].Add(-1)
					tk.state.Store(voided)
					env.Pairs.leave(tk)
					continue
				}
				tk.state.Store(voided) // whoever hands the pair on lets go
				env.Pairs.withdraw(tk)
			}
		})
	}
	group.Wait()
	for i := range env.Pairs.shards {
		if s := &env.Pairs.shards[i]; len(s.owners)+len(s.waiting) != 0 {
			t.Errorf("left behind: %d, %d", len(s.owners), len(s.waiting))
		}
	}
}

// A claim that was lost and regained while a handler runs leaves tickets of
// every claim in between behind that handler. Only the latest claim's may run.
func TestTicketsOfLostClaimsDoNotWait(t *testing.T) {
	p := NewPairs()
	ticket := func(token int64) *Ticket {
		return &Ticket{Work: &core.Work{Record: 1, Token: token, Consumer: &core.Consumer{ID: 1}}}
	}
	running, older, latest, late := ticket(1), ticket(2), ticket(4), ticket(3)
	if ok, stale := p.enter(running); !ok || len(stale) != 0 {
		t.Fatalf("the first: %v, %d stale", ok, len(stale))
	}
	for _, step := range []struct {
		ticket *Ticket
		stale  *Ticket
	}{{older, nil}, {latest, older}, {late, late}} {
		ok, stale := p.enter(step.ticket)
		if ok {
			t.Fatalf("token %d runs beside another", step.ticket.Work.Token)
		}
		if len(stale) > 1 || (len(stale) == 1) != (step.stale != nil) || step.stale != nil && stale[0] != step.stale {
			t.Fatalf("token %d: %d stale", step.ticket.Work.Token, len(stale))
		}
	}
	if p.withdraw(older) || p.withdraw(late) || !p.withdraw(latest) {
		t.Error("not the latest, and it alone, waits")
	}
}
