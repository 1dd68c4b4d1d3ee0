package actors

import (
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"pgregory.net/rapid"
)

func newSystem(t *testing.T) (*actor.ActorSystem, *Crew) {
	t.Helper()
	crew := NewCrew()
	t.Cleanup(crew.Close)
	return actor.NewActorSystem(
		actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }),
		actor.WithDeadLetterThrottleInterval(time.Millisecond)), crew
}

func TestMailboxKeepsTheOrderOfEachSender(t *testing.T) {
	system, crew := newSystem(t)
	for name, props := range map[string]func(actor.Producer) *actor.Props{"on the crew": crew.Props, "inline": InlineProps} {
		t.Run(name, func(t *testing.T) { keepsOrder(t, system, props) })
	}
}

func keepsOrder(t *testing.T, system *actor.ActorSystem, props func(actor.Producer) *actor.Props) {
	t.Helper()
	const senders, each = 8, 2000
	type message struct{ sender, n int }
	var last [senders]int
	var inside atomic.Int32
	all := make(chan struct{})
	got := 0
	pid := system.Root.Spawn(props(func() actor.Actor {
		return actor.ReceiveFunc(func(c actor.Context) {
			if inside.Add(1) != 1 {
				t.Error("two messages at a time")
			}
			defer inside.Add(-1)
			m, ok := c.Message().(message)
			if !ok {
				return
			}
			if m.n != last[m.sender]+1 {
				t.Errorf("sender %d: %d after %d", m.sender, m.n, last[m.sender])
			}
			last[m.sender] = m.n
			if got++; got == senders*each {
				close(all)
			}
		})
	}))
	var group sync.WaitGroup
	for s := range senders {
		group.Go(func() {
			for n := range each {
				system.Root.Send(pid, message{s, n + 1})
			}
		})
	}
	group.Wait()
	receive(t, "all messages", all)
}

// invoker notes what a mailbox passes it.
type invoker struct {
	seen  []string
	panic bool
}

func (i *invoker) InvokeSystemMessage(m any) { i.seen = append(i.seen, fmt.Sprint("system ", m)) }
func (i *invoker) InvokeUserMessage(m any) {
	i.seen = append(i.seen, fmt.Sprint("user ", m))
	if i.panic {
		i.panic = false
		panic("bug")
	}
}
func (i *invoker) EscalateFailure(reason, m any) {
	i.seen = append(i.seen, fmt.Sprint("failed ", m, " ", reason))
}

func TestMailboxRules(t *testing.T) {
	for name, c := range map[string]struct {
		post func(m *mailbox, i *invoker)
		want []string
	}{
		"system messages overtake": {func(m *mailbox, _ *invoker) {
			m.PostUserMessage(1)
			m.PostSystemMessage(2)
		}, []string{"system 2", "user 1"}},
		"while suspended only system messages": {func(m *mailbox, _ *invoker) {
			m.PostUserMessage(1)
			m.PostSystemMessage(&actor.SuspendMailbox{})
			m.PostSystemMessage(2)
		}, []string{"system 2"}},
		"and the others after the resumption": {func(m *mailbox, _ *invoker) {
			m.PostSystemMessage(&actor.SuspendMailbox{})
			m.PostUserMessage(1)
			m.run()
			m.PostUserMessage(2)
			m.PostSystemMessage(&actor.ResumeMailbox{})
		}, []string{"user 1", "user 2"}},
		"a panic goes to the supervisor, the rest is kept": {func(m *mailbox, i *invoker) {
			i.panic = true
			m.PostUserMessage(1)
			m.PostUserMessage(2)
		}, []string{"user 1", "failed 1 bug", "user 2"}},
	} {
		t.Run(name, func(t *testing.T) {
			crew := &Crew{queue: make(chan *mailbox, 10)} // schedules, and nobody runs
			i := &invoker{}
			m := &mailbox{crew: crew}
			m.RegisterHandlers(i, nil)
			c.post(m, i)
			m.run()
			if !slices.Equal(i.seen, c.want) {
				t.Errorf("%v, want %v", i.seen, c.want)
			}
		})
	}
}

// An actor with a long queue does not keep others from their turn.
func TestMailboxMakesRoomForOthers(t *testing.T) {
	crew := &Crew{queue: make(chan *mailbox, 10)}
	i := &invoker{}
	m := &mailbox{crew: crew}
	m.RegisterHandlers(i, nil)
	for n := range 10 * throughput * (maxTurns + 1) {
		m.PostUserMessage(n)
	}
	<-crew.queue
	m.run()
	if len(i.seen) != throughput*(maxTurns+1) {
		t.Errorf("%d messages in one go", len(i.seen))
	}
	if next := <-crew.queue; next != m {
		t.Error("it is not scheduled again")
	}
}

func TestRingAgainstASlice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r ring
		var model []any
		for n := range rapid.IntRange(1, 200).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "push") || len(model) == 0 {
				r.push(n)
				model = append(model, n)
				continue
			}
			if got := r.pop(); got != model[0] {
				t.Fatalf("popped %v, want %v", got, model[0])
			}
			model = model[1:]
			if r.n != len(model) {
				t.Fatalf("%d left, want %d", r.n, len(model))
			}
		}
	})
}

func TestQueueAgainstASlice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q, other Queue
		tickets := make([]*Ticket, 8)
		for i := range tickets {
			tickets[i] = &Ticket{}
		}
		var model []*Ticket
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			x := tickets[rapid.IntRange(0, 7).Draw(t, "ticket")]
			at := slices.Index(model, x)
			switch rapid.IntRange(0, 3).Draw(t, "act") {
			case 0:
				if at < 0 {
					q.Push(x)
					model = append(model, x)
				}
			case 1:
				if other.Remove(x) || q.Remove(x) != (at >= 0) {
					t.Fatal("remove")
				}
				if at >= 0 {
					model = slices.Delete(model, at, at+1)
				}
			case 2:
				if got := q.Pop(); len(model) == 0 && got != nil || len(model) > 0 && got != model[0] {
					t.Fatal("pop")
				} else if got != nil {
					model = model[1:]
				}
			case 3:
				if got := q.PopLast(); len(model) == 0 && got != nil || len(model) > 0 && got != model[len(model)-1] {
					t.Fatal("pop last")
				} else if got != nil {
					model = model[:len(model)-1]
				}
			}
			if q.Len() != len(model) {
				t.Fatalf("length %d, want %d", q.Len(), len(model))
			}
		}
	})
}

// The sender's goroutine runs an inline actor: what it sends is handled when
// Send returns, one message at a time, also those that come of it.
func TestAnInlineMailboxIsHandledByWhoeverSends(t *testing.T) {
	system, _ := newSystem(t)
	var got []int // without a lock: the race detector would see another goroutine
	var self *actor.PID
	inside := false
	self = system.Root.Spawn(InlineProps(func() actor.Actor {
		return actor.ReceiveFunc(func(c actor.Context) {
			n, ok := c.Message().(int)
			if !ok {
				return
			}
			if inside {
				t.Error("a message within another")
			}
			inside = true
			got = append(got, n)
			if n < 3 {
				system.Root.Send(self, n+1)
			}
			inside = false
		})
	}))
	system.Root.Send(self, 1)
	if !slices.Equal(got, []int{1, 2, 3}) {
		t.Errorf("%v", got)
	}
	// One that fails is escalated with its message, and the next is handled.
	i := &invoker{panic: true}
	m := &mailbox{}
	m.RegisterHandlers(i, nil)
	m.PostUserMessage(1)
	m.PostUserMessage(2)
	if want := []string{"user 1", "failed 1 bug", "user 2"}; !slices.Equal(i.seen, want) {
		t.Errorf("%v, want %v", i.seen, want)
	}
}
