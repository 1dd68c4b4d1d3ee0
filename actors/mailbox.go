package actors

import (
	"sync"

	"github.com/asynkron/protoactor-go/actor"
)

// mailbox is the actors' mailbox: the library's rules (system messages first,
// none but those while suspended, a panic goes to the supervisor) with one lock
// and without an allocation per message.
type mailbox struct {
	crew    *Crew // nil: whoever sends handles what is there
	invoker actor.MessageInvoker

	mu        sync.Mutex
	system    []any
	user      ring
	scheduled bool
	suspended bool
}

// PostUserMessage implements actor.Mailbox.
func (m *mailbox) PostUserMessage(message any) {
	m.mu.Lock()
	wake := !m.scheduled && !m.suspended
	m.scheduled = m.scheduled || wake
	if wake && m.crew == nil && m.user.n == 0 {
		m.mu.Unlock()
		m.runFrom(message) // its turn at once: it need not be queued
		return
	}
	m.user.push(message)
	m.mu.Unlock()
	if wake {
		m.schedule()
	}
}

// schedule has what is there handled.
func (m *mailbox) schedule() {
	if m.crew == nil {
		m.run()
		return
	}
	m.crew.schedule(m)
}

// PostSystemMessage implements actor.Mailbox.
func (m *mailbox) PostSystemMessage(message any) {
	m.mu.Lock()
	m.system = append(m.system, message)
	wake := !m.scheduled
	m.scheduled = true
	m.mu.Unlock()
	if wake {
		m.schedule()
	}
}

// RegisterHandlers implements actor.Mailbox. The dispatcher is the crew.
func (m *mailbox) RegisterHandlers(invoker actor.MessageInvoker, _ actor.Dispatcher) {
	m.invoker = invoker
}

// Start implements actor.Mailbox.
func (m *mailbox) Start() {}

// UserMessageCount implements actor.Mailbox.
func (m *mailbox) UserMessageCount() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.user.n
}

// run handles what is there.
func (m *mailbox) run() { m.runFrom(nil) }

// runFrom handles a message that is not queued, if there is one, and then what is there.
func (m *mailbox) runFrom(message any) {
	for i := 0; !m.handle(message); i++ {
		message = nil
		if i == maxTurns {
			m.schedule() // others' turn
			return
		}
	}
}

// handle handles messages until none is left, or one panics, or enough have
// been: then it reports false.
func (m *mailbox) handle(message any) (empty bool) {
	defer func() {
		if r := recover(); r != nil {
			m.invoker.EscalateFailure(r, message)
		}
	}()
	if message != nil {
		m.invoker.InvokeUserMessage(message)
	}
	for range throughput {
		var system bool
		if message, system, empty = m.next(); empty {
			return true
		}
		switch message.(type) {
		case *actor.SuspendMailbox:
			m.suspend(true)
		case *actor.ResumeMailbox:
			m.suspend(false)
		default:
			if system {
				m.invoker.InvokeSystemMessage(message)
			} else {
				m.invoker.InvokeUserMessage(message)
			}
		}
	}
	return false
}

func (m *mailbox) suspend(on bool) {
	m.mu.Lock()
	m.suspended = on
	m.mu.Unlock()
}

// next takes the next message; where there is none, the mailbox is at rest.
func (m *mailbox) next() (message any, system, empty bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case len(m.system) > 0:
		message = m.system[0]
		m.system[0] = nil
		m.system = m.system[1:]
		if len(m.system) == 0 {
			m.system = nil
		}
		return message, true, false
	case m.user.n > 0 && !m.suspended:
		return m.user.pop(), false, false
	}
	m.scheduled = false
	return nil, false, true
}

// ring is a growing ring of messages.
type ring struct {
	slots   []any
	head, n int
}

func (r *ring) push(message any) {
	if r.n == len(r.slots) {
		grown := make([]any, max(4, 2*r.n))
		for i := range r.n {
			grown[i] = r.slots[(r.head+i)%r.n]
		}
		r.slots, r.head = grown, 0
	}
	r.slots[(r.head+r.n)&(len(r.slots)-1)] = message
	r.n++
}

func (r *ring) pop() any {
	message := r.slots[r.head]
	r.slots[r.head] = nil
	r.head = (r.head + 1) & (len(r.slots) - 1)
	r.n--
	return message
}
