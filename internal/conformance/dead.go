package conformance

import (
	"time"

	"github.com/keylinehq/keyline/internal/core"
)

// died makes a claimed record with an open dead letter of its first event.
func (s *suite) died(p Process, key string, c int32) (core.Loaded, int64) {
	s.Helper()
	l := s.hold(p, s.Append(key, some(2)...))
	f := keep(l, ready(l.Record, c, 1))
	f.DeadLetters = []core.DeadLetter{{Record: l.Record, Seq: 1, Consumer: c, Attempt: 4, EventID: l.Events[0].ID, Reason: core.DeadExhausted, Code: "boom", FirstFailedAt: s.in(-3), FailedAt: s.in(-1)}}
	s.flushes(p, f, core.FlushKept)
	return l, s.row(l.Record).DeadLetters[0].ID
}

// retrying has an operator ask for it again, and the holder take that up.
func (s *suite) retrying(p Process, l core.Loaded, dead int64, due time.Time) core.Loaded {
	s.Helper()
	s.Command(core.Command{Record: l.Record, Kind: core.CommandRetryDead, DeadLetter: dead, Actor: "op"})
	again := s.load(p, l.Claim)
	if len(again.Commands) != 1 || again.Commands[0].Dead == nil {
		s.Fatalf("%+v", again.Commands)
	}
	c := again.Commands[0]
	f := keep(again)
	f.Applied = []core.AppliedCommand{{ID: c.ID, Done: true}}
	retry := *c.Dead
	retry.Granted, retry.DueAt = retry.Attempt, due
	f.DeadUpdates = []core.DeadUpdate{{DeadRetry: retry, Status: core.DeadWaiting, At: s.Now()}}
	s.flushes(p, f, core.FlushKept)
	return s.load(p, l.Claim)
}

var deadCases = []testCase{
	{"a command about a dead letter names its consumer and its event", func(s *suite) {
		c := s.Register(consumer("c"))
		p := s.Process(nil)
		l, dead := s.died(p, "r", c)
		s.Command(core.Command{Record: l.Record, Kind: core.CommandResolveDead, DeadLetter: dead, Actor: "op", Reason: "gone"})
		s.Command(core.Command{Record: l.Record, Kind: core.CommandResolveDead, DeadLetter: 99999, Actor: "op"})
		got := s.load(p, l.Claim).Commands
		if len(got) != 2 || got[0].Consumer != c || got[0].Seq != 1 || !got[0].DeadOpen || got[0].Dead == nil || got[0].Dead.Attempt != 4 || got[0].Dead.ErrorCode != "boom" {
			s.Fatalf("%+v", got)
		}
		if got[1].Dead != nil || got[1].DeadOpen {
			s.Errorf("about none: %+v", got[1])
		}
	}},
	{"a retried dead letter is loaded and keeps its record from settling, not from being handed back", func(s *suite) {
		c := s.Register(consumer("c"))
		p := s.Process(nil)
		l, dead := s.died(p, "r", c)
		l = s.retrying(p, l, dead, s.in(2))
		if len(l.Retries) != 1 || l.Retries[0].ID != dead || l.Retries[0].Granted != 4 || len(l.Commands) != 0 {
			s.Fatalf("%+v", l)
		}
		f := settle(l)
		f.Deletes = []int32{c}
		if res := s.flushes(p, f, core.FlushKept); !res.Pending {
			s.Errorf("a settle: %+v", res)
		}
		f = keep(l)
		f.Then, f.DueAt = core.HandBack, s.in(2)
		s.flushes(p, f, core.FlushGone)
		s.Advance(2 * time.Hour)
		l = s.hold(p, l.Record)
		u := core.DeadUpdate{DeadRetry: l.Retries[0], Status: core.DeadDelivered, At: s.Now()}
		u.Attempt++
		f = keep(l)
		f.DeadUpdates = []core.DeadUpdate{u}
		s.flushes(p, f, core.FlushKept)
		if l = s.load(p, l.Claim); len(l.Retries) != 0 {
			s.Errorf("delivered, and still to be retried: %+v", l.Retries)
		}
		if d := s.row(l.Record).DeadLetters[0]; d.Status != core.DeadDelivered || d.Attempt != 5 || !d.DueAt.IsZero() {
			s.Errorf("%+v", d)
		}
		f = settle(l)
		f.Deletes = []int32{c}
		s.flushes(p, f, core.FlushGone)
	}},
	{"a retry that dies again opens its dead letter, and dying anew reopens a closed one", func(s *suite) {
		c := s.Register(consumer("c"))
		p := s.Process(nil)
		l, dead := s.died(p, "r", c)
		l = s.retrying(p, l, dead, s.in(0))
		u := core.DeadUpdate{DeadRetry: l.Retries[0], Status: core.DeadAgain, Code: "bang", Reason: core.DeadPermanent, At: s.in(1)}
		f := keep(l)
		f.DeadUpdates = []core.DeadUpdate{u}
		s.flushes(p, f, core.FlushKept)
		d := s.row(l.Record).DeadLetters[0]
		if d.Status != core.DeadAgain || d.Reason != core.DeadPermanent || d.ErrorCode != "bang" || !d.DueAt.IsZero() {
			s.Errorf("%+v", d)
		}
		s.near("failed", d.FailedAt, 1)
		u.Status, u.Code, u.Reason = core.DeadResolved, "", ""
		f.DeadUpdates = []core.DeadUpdate{u}
		s.flushes(p, f, core.FlushKept)
		if d := s.row(l.Record).DeadLetters[0]; d.Status != core.DeadResolved || d.Reason != core.DeadPermanent || d.ErrorCode != "bang" {
			s.Errorf("resolved: %+v", d)
		}
		f.DeadUpdates, f.DeadLetters = nil, []core.DeadLetter{{Record: l.Record, Seq: 1, Consumer: c, Attempt: 9, EventID: l.Events[0].ID, Reason: core.DeadCrashes, Code: "crash", FirstFailedAt: s.in(-1), FailedAt: s.in(2)}}
		s.flushes(p, f, core.FlushKept)
		row := s.row(l.Record)
		if d := row.DeadLetters[0]; len(row.DeadLetters) != 1 || d.ID != dead || d.Status != core.DeadAgain || d.Attempt != 9 || d.Reason != core.DeadCrashes {
			s.Errorf("reopened: %+v", row.DeadLetters)
		}
	}},
	{"an update without an id closes whatever dead letter the head delivery has", func(s *suite) {
		c := s.Register(consumer("c"))
		p := s.Process(nil)
		l, _ := s.died(p, "r", c)
		f := keep(l)
		f.DeadUpdates = []core.DeadUpdate{
			{DeadRetry: core.DeadRetry{Record: l.Record, Consumer: c, Seq: 2, Attempt: 1}, Status: core.DeadResolved, At: s.Now()},
			{DeadRetry: core.DeadRetry{Record: l.Record, Consumer: c, Seq: 1, Attempt: 1}, Status: core.DeadDelivered, At: s.Now()},
		}
		s.flushes(p, f, core.FlushKept)
		row := s.row(l.Record)
		if d := row.DeadLetters[0]; len(row.DeadLetters) != 1 || d.Status != core.DeadDelivered || d.Attempt != 4 {
			s.Errorf("%+v", row.DeadLetters)
		}
	}},
	{"a command is applied once, by the record's holder alone", func(s *suite) {
		c := s.Register(consumer("c"))
		p, r, q := s.Process(nil), s.Append("r", one()), s.Append("q", one())
		id := s.Command(core.Command{Record: r, Kind: core.CommandSkip, Consumer: c, Seq: 1, Actor: "op"})
		other := keep(s.hold(p, q))
		other.Applied = []core.AppliedCommand{{ID: id, Done: true, Detail: "not mine"}}
		s.unchanged("applying another record's command", func() { s.flushes(p, other, core.FlushKept) })
		f := keep(s.hold(p, r))
		f.Applied = []core.AppliedCommand{{ID: id, Detail: "nothing to do"}}
		s.flushes(p, f, core.FlushKept)
		f.Applied = []core.AppliedCommand{{ID: id, Done: true, Detail: "again"}}
		s.unchanged("applying it again", func() { s.flushes(p, f, core.FlushKept) })
		if got := s.row(r).Commands[0]; !got.Applied || got.Done || got.Detail != "nothing to do" {
			s.Errorf("%+v", got)
		}
	}},
	{"a command makes a settled record due", func(s *suite) {
		s.Register(consumer("c"))
		p, r := s.Process(nil), s.Append("r", one())
		s.flushes(p, settle(s.hold(p, r)), core.FlushGone)
		s.Command(core.Command{Record: r, Kind: core.CommandRetry, Actor: "op"})
		if m := s.mailbox(r); m.DueAt.After(s.Now()) || m.ClaimedBy != 0 {
			s.Errorf("%+v", m)
		}
		if l := s.hold(p, r); l.Base != 1 || len(l.Events) != 0 || len(l.Commands) != 1 {
			s.Errorf("%+v", l)
		}
	}},
}
