package delivery

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

var begin = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// script drives one machine by hand and says what it wants.
type script struct {
	t   *testing.T
	m   *Machine
	now time.Time
	got []Effect
}

func consumer(id int32, change ...func(*core.Consumer)) *core.Consumer {
	none := 0.0
	c := &core.Consumer{ID: id, Name: fmt.Sprintf("c%d", id), Status: core.Active, Revision: 1, Types: []string{"*"},
		OnUnsupported: keylinetype.SkipUnsupported, OnDead: keylinetype.Advance, Scope: keylinetype.OneForOne,
		Retry: keylinetype.RetryPolicy{Delays: keylinetype.DefaultRetryDelays(), Jitter: &none}, Hosted: true}
	for _, f := range change {
		f(c)
	}
	return c
}

func registry(consumers ...*core.Consumer) *core.Registry {
	return core.NewRegistry(1, keylinetype.Independent, consumers, nil)
}

func events(from, to int64) []core.Event {
	var list []core.Event
	for seq := from; seq <= to; seq++ {
		e := core.Event{Record: 1}
		e.Seq, e.ID, e.Type, e.Version = seq, uuid.NewSHA1(uuid.Nil, fmt.Append(nil, seq)), "thing.done", 1
		e.CreatedAt, e.OccurredAt = begin, begin
		list = append(list, e)
	}
	return list
}

func loaded(head, base int64, change ...func(*core.Loaded)) core.Loaded {
	l := core.Loaded{Claim: core.Claim{Record: 1, Token: 7}, Key: "thing:1", Head: head, Base: base, Events: events(base+1, head)}
	for _, f := range change {
		f(&l)
	}
	return l
}

func start(t *testing.T, reg *core.Registry, l core.Loaded) *script {
	t.Helper()
	s := &script{t: t, now: begin}
	var effects []Effect
	s.m, effects = New(reg, l, Options{Now: s.now, Random: func() float64 { return 0.5 }})
	s.take(effects)
	return s
}

func (s *script) take(effects []Effect) {
	s.got = append([]Effect(nil), effects...)
}

func (s *script) step(m Message) *script {
	s.t.Helper()
	s.take(s.m.Step(s.now, m))
	return s
}

func (s *script) after(d time.Duration) *script {
	s.t.Helper()
	s.now = s.now.Add(d)
	return s.step(Tick{})
}

func find[E Effect](s *script) (found []E) {
	for _, e := range s.got {
		if e, ok := e.(E); ok {
			found = append(found, e)
		}
	}
	return found
}

func only[E Effect](s *script) E {
	s.t.Helper()
	found := find[E](s)
	if len(found) != 1 {
		var zero E
		s.t.Fatalf("want one %T, have %d in %+v", zero, len(found), s.got)
	}
	return found[0]
}

func none[E Effect](s *script) {
	s.t.Helper()
	if found := find[E](s); len(found) != 0 {
		s.t.Fatalf("want no %T, have %+v", found[0], found)
	}
}

// starts returns the started works by consumer.
func (s *script) starts() map[int32]core.Work {
	works := map[int32]core.Work{}
	for _, e := range find[Start](s) {
		works[e.Work.Consumer.ID] = *e.Work
	}
	return works
}

func (s *script) start(id int32) core.Work {
	s.t.Helper()
	w, ok := s.starts()[id]
	if !ok {
		s.t.Fatalf("consumer %d does not start: %+v", id, s.got)
	}
	return w
}

var errHandler = errors.New("no luck")

func (s *script) end(w core.Work, err error) *script {
	s.t.Helper()
	return s.step(&Ended{&w, core.Outcome{Err: err}})
}

// flushed answers the one Flush as written, the claim going on.
func (s *script) kept() *script {
	s.t.Helper()
	f := only[Flush](s).Flush
	return s.step(&Flushed{core.FlushResult{Record: 1, Token: 7, Status: core.FlushKept, Head: f.Head}})
}

func (s *script) gone() *script {
	s.t.Helper()
	only[Flush](s)
	return s.step(&Flushed{core.FlushResult{Record: 1, Token: 7, Status: core.FlushGone}})
}

func (s *script) flush(then core.Disposition) core.Flush {
	s.t.Helper()
	f := *only[Flush](s).Flush
	if f.Then != then {
		s.t.Fatalf("flush wants disposition %d, have %d: %+v", then, f.Then, f)
	}
	return f
}

func row(f core.Flush, consumer int32) *core.Checkpoint {
	for i := range f.Upserts {
		if f.Upserts[i].Consumer == consumer {
			return &f.Upserts[i]
		}
	}
	return nil
}
