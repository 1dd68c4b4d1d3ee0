package conformance

import (
	"errors"
	"time"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

var errHandler = errors.New("the handler failed")

// transactional makes a claimed record of three events on which a transactional consumer has its row, and the work of its first.
func (s *suite) transactional(p Process, key string) (core.Loaded, *core.Work) {
	s.Helper()
	c := consumer("tx-"+key, func(c *core.Consumer) { c.Transactional = true })
	c.ID = s.Register(c)
	l := s.hold(p, s.Append(key, some(3)...))
	s.flushes(p, keep(l, ready(l.Record, c.ID, 0)), core.FlushKept)
	return l, &core.Work{Record: l.Record, Token: l.Token, Consumer: &c, Events: l.Events[:1], Attempt: 1, Checkpoint: ready(l.Record, c.ID, 0)}
}

// booking moves the row on where the handler succeeded, else into backoff.
func (s *suite) booking(w *core.Work) func(error) core.Booking {
	return func(err error) core.Booking {
		b := core.Booking{Checkpoint: ready(w.Record, w.Consumer.ID, w.Fence+1)}
		if err != nil {
			b.Checkpoint = core.Checkpoint{Record: w.Record, Consumer: w.Consumer.ID, Seq: w.Fence, State: core.Backoff, Attempt: 1, NextAttemptAt: s.in(1), FirstFailedAt: s.in(0), ErrorCode: "boom", RedeliverTo: w.Fence + 1}
			b.Failure = &core.Failure{Record: w.Record, Seq: w.Fence + 1, Consumer: w.Consumer.ID, Attempt: 1, At: s.in(0), Code: "boom"}
		}
		return b
	}
}

func succeeds() error { return nil }

var txCases = []testCase{
	{"a HandleTx moves its row with its commit", func(s *suite) {
		p := s.Process(nil)
		l, w := s.transactional(p, "r")
		if out := p.Transact(w, succeeds, s.booking(w)); out.Err != nil || out.Booked == nil || out.Fenced {
			s.Errorf("%+v", out)
		}
		if at := s.position(l.Record, w.Consumer.ID); at != 1 {
			s.Errorf("at %d", at)
		}
	}},
	{"a HandleTx that fails books its failure", func(s *suite) {
		p := s.Process(nil)
		l, w := s.transactional(p, "r")
		if out := p.Transact(w, func() error { return errHandler }, s.booking(w)); !errors.Is(out.Err, errHandler) || out.Booked == nil || out.Fenced {
			s.Errorf("%+v", out)
		}
		if row := s.row(l.Record); row.Checkpoints[0].State != core.Backoff || row.Checkpoints[0].Seq != 0 || len(row.Failures) != 1 {
			s.Errorf("%+v", row)
		}
	}},
	{"a HandleTx without the claim never begins", func(s *suite) {
		p, other := s.Process(nil), s.Process(nil)
		l, w := s.transactional(p, "r")
		_, theirs := s.transactional(other, "q")
		s.flushes(p, core.Flush{Record: l.Record, Token: l.Token, Head: 3, Then: core.Release}, core.FlushGone)
		s.unchanged("a HandleTx without a claim", func() {
			for _, w := range []*core.Work{w, theirs} {
				out := p.Transact(w, func() error { s.Error("the handler runs"); return nil }, s.booking(w))
				if !out.Fenced || !errors.Is(out.Err, keylinetype.ErrFenced) || out.Booked != nil {
					s.Errorf("%+v", out)
				}
			}
		})
	}},
	{"a HandleTx whose row is elsewhere writes nothing and is fenced", func(s *suite) {
		p := s.Process(nil)
		l, w := s.transactional(p, "r")
		s.flushes(p, keep(l, ready(l.Record, w.Consumer.ID, 3)), core.FlushKept)
		s.unchanged("it", func() {
			if out := p.Transact(w, succeeds, s.booking(w)); !out.Fenced || out.Booked != nil {
				s.Errorf("%+v", out)
			}
		})
		f := keep(l)
		f.Deletes = []int32{w.Consumer.ID}
		s.flushes(p, f, core.FlushKept)
		s.unchanged("it, without a row", func() {
			if out := p.Transact(w, succeeds, s.booking(w)); !out.Fenced || out.Booked != nil {
				s.Errorf("%+v", out)
			}
		})
	}},
	{"a HandleTx that had committed before is booked, not run again into the table", func(s *suite) {
		p := s.Process(nil)
		_, w := s.transactional(p, "r")
		p.Transact(w, succeeds, s.booking(w))
		s.unchanged("the same again", func() {
			if out := p.Transact(w, succeeds, s.booking(w)); out.Fenced || out.Err != nil || out.Booked == nil {
				s.Errorf("%+v", out)
			}
		})
	}},
	{"an open HandleTx keeps claims away, lets flush and recovery pass, and commits", func(s *suite) {
		p, other := s.Process(nil), s.Process(nil)
		l, w := s.transactional(p, "r")
		out := p.Transact(w, func() error {
			s.flushes(p, keep(l), core.FlushKept)
			// Not lost: that would end its session.
			if err := p.Leave(s.Context(), p.Worker()); err != nil {
				s.Fatal(err)
			}
			s.recovers(other, 1)
			if got := s.claims(other, core.ClaimRequest{Limit: 9}); len(got) != 0 {
				s.Errorf("claimed beside it: %+v", got)
			}
			if got := s.claims(other, core.ClaimRequest{Limit: 1, Record: l.Record}); len(got) != 0 {
				s.Errorf("claimed by its name beside it: %+v", got)
			}
			return nil
		}, s.booking(w))
		if out.Err != nil || out.Booked == nil {
			s.Errorf("%+v", out)
		}
		if l := s.hold(other, l.Record); l.Checkpoints[0].Seq != 1 || !l.Unclean {
			s.Errorf("%+v", l)
		}
	}},
	{"a dead letter's retry is fenced by its attempt and leaves the row alone", func(s *suite) {
		p := s.Process(nil)
		l, w := s.transactional(p, "r")
		f := keep(l)
		f.DeadLetters = []core.DeadLetter{{Record: l.Record, Seq: 1, Consumer: w.Consumer.ID, Attempt: 4, EventID: l.Events[0].ID, Reason: core.DeadExhausted, Code: "boom", FirstFailedAt: s.in(-3), FailedAt: s.in(-1)}}
		f.Upserts = []core.Checkpoint{ready(l.Record, w.Consumer.ID, 1)}
		s.flushes(p, f, core.FlushKept)
		l = s.retrying(p, l, s.row(l.Record).DeadLetters[0].ID, s.in(0))
		w.Dead = &l.Retries[0]
		book := func(err error) core.Booking {
			u := core.DeadUpdate{DeadRetry: *w.Dead, Status: core.DeadDelivered, At: s.Now()}
			u.Attempt++
			if err != nil {
				u.Status, u.DueAt = core.DeadWaiting, s.in(2)
			}
			return core.Booking{Checkpoint: ready(l.Record, w.Consumer.ID, 1), Dead: &u}
		}
		if out := p.Transact(w, func() error { return errHandler }, book); out.Booked == nil || out.Fenced {
			s.Errorf("%+v", out)
		}
		if d := s.row(l.Record).DeadLetters[0]; d.Status != core.DeadWaiting || d.Attempt != 5 {
			s.Errorf("%+v", d)
		}
		s.unchanged("an outdated one", func() {
			if out := p.Transact(w, succeeds, book); !out.Fenced || out.Booked != nil {
				s.Errorf("%+v", out)
			}
		})
		s.Advance(2 * time.Hour)
		w.Dead = &s.load(p, l.Claim).Retries[0]
		if out := p.Transact(w, succeeds, book); out.Err != nil || out.Booked == nil {
			s.Errorf("%+v", out)
		}
		if d := s.row(l.Record).DeadLetters[0]; d.Status != core.DeadDelivered || d.Attempt != 6 || s.position(l.Record, w.Consumer.ID) != 1 {
			s.Errorf("%+v", d)
		}
	}},
}
