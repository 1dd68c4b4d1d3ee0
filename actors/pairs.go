package actors

import (
	"sync"

	"github.com/keylinehq/keyline/internal/core"
)

// Pairs are the (record, consumer) pairs whose handlers run in this process,
// or are about to. One Pairs serves all workers of a process that share a
// database, over all their incarnations: a claim that was lost and regained
// does not start a handler while the old claim's still runs.
type Pairs struct {
	shards [16]pairShard
}

type pair struct {
	record   int64
	consumer int32
}

type owner struct {
	ticket *Ticket
	token  int64
}

type pairShard struct {
	mu      sync.Mutex
	owners  map[pair]owner
	waiting map[pair][]*Ticket // behind an owner; rare
}

// NewPairs makes an empty registry.
func NewPairs() *Pairs {
	p := &Pairs{}
	for i := range p.shards {
		p.shards[i].owners = map[pair]owner{}
		p.shards[i].waiting = map[pair][]*Ticket{}
	}
	return p
}

func (p *Pairs) shard(t *Ticket) (*pairShard, pair) {
	k := pair{t.Work.Record, t.Work.Consumer.ID}
	return &p.shards[uint64(k.record)%uint64(len(p.shards))], k
}

// enter reserves the ticket's pair; ok is false where another holds it: then the
// ticket is admitted once that one has left.
//
// Tokens grow, so of two tickets for a pair the one with the lower token speaks for a claim that is
// lost. Such ones (this ticket may be one) do not wait: they would run, one after another, what
// their successor is to run again. They are returned, to be refused.
func (p *Pairs) enter(t *Ticket) (ok bool, stale []*Ticket) {
	s, k := p.shard(t)
	s.mu.Lock()
	defer s.mu.Unlock()
	o, taken := s.owners[k]
	if !taken {
		s.owners[k] = owner{t, t.Work.Token}
		return true, nil
	}
	latest := max(o.token, t.Work.Token)
	for _, other := range s.waiting[k] {
		latest = max(latest, other.Work.Token)
	}
	var wait []*Ticket
	for _, other := range append(s.waiting[k], t) {
		if other.Work.Token < latest {
			stale = append(stale, other)
		} else {
			wait = append(wait, other)
		}
	}
	s.setWaiting(k, wait)
	return false, stale
}

// leave frees the ticket's pair for the next that waits.
func (p *Pairs) leave(t *Ticket) {
	s, k := p.shard(t)
	s.mu.Lock()
	var next *Ticket
	if s.owners[k].ticket == t {
		delete(s.owners, k)
		if q := s.waiting[k]; len(q) > 0 {
			next = q[0]
			s.owners[k] = owner{next, next.Work.Token}
			s.setWaiting(k, q[1:])
		}
	}
	s.mu.Unlock()
	if next != nil {
		next.admit()
	}
}

// withdraw takes a waiting ticket out; false where it does not wait here.
func (p *Pairs) withdraw(t *Ticket) bool {
	s, k := p.shard(t)
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.waiting[k]
	for i, other := range q {
		if other == t {
			s.setWaiting(k, append(q[:i:i], q[i+1:]...))
			return true
		}
	}
	return false
}

func (s *pairShard) setWaiting(k pair, q []*Ticket) {
	if len(q) == 0 {
		delete(s.waiting, k)
		return
	}
	s.waiting[k] = q
}

// Running is a handler that runs.
type Running struct {
	core.Held
	Consumer int32
	Name     string
	Seq      int64
}

// Running lists the handlers that run now.
func (p *Pairs) Running() []Running {
	var out []Running
	for i := range p.shards {
		s := &p.shards[i]
		s.mu.Lock()
		for k, o := range s.owners {
			if o.ticket.state.Load() != begun {
				continue
			}
			r := Running{Held: core.Held{Record: k.record, Token: o.token}, Consumer: k.consumer,
				Name: o.ticket.Work.Consumer.Name}
			if ev := o.ticket.Work.Events; len(ev) > 0 {
				r.Seq = ev[0].Seq
			}
			out = append(out, r)
		}
		s.mu.Unlock()
	}
	return out
}
