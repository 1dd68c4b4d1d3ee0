package conformance

import (
	"errors"
	"time"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// started makes a claimed record with an attempt that was written ahead.
func (s *suite) started(p Process, key string, c int32) core.Loaded {
	s.Helper()
	l := s.hold(p, s.Append(key, some(2)...))
	s.flushes(p, keep(l, core.Checkpoint{Record: l.Record, Consumer: c, State: core.Started, Attempt: 3, Granted: 1, Crashes: 1, FirstFailedAt: s.in(-1)}), core.FlushKept)
	return l
}

var leaseCases = []testCase{
	{"a worker is lost only while its beat is the one that was seen", func(s *suite) {
		p, other := s.Process(nil), s.Process(nil)
		seen := s.beat(other, p.Worker())
		if seen.Lease != Lease {
			s.Fatalf("%+v", seen)
		}
		if err := p.Renew(s.Context(), p.Worker(), nil); err != nil {
			s.Fatal(err)
		}
		if marked, err := other.MarkLost(s.Context(), seen); err != nil || marked {
			s.Errorf("marked after a renewal: %v, %v", marked, err)
		}
		seen = s.beat(other, p.Worker())
		if marked, err := other.MarkLost(s.Context(), seen); err != nil || !marked {
			s.Errorf("not marked: %v", err)
		}
		if marked, _ := other.MarkLost(s.Context(), seen); marked {
			s.Error("marked twice")
		}
		// Its own sessions have been ended, if it has any.
		if err := other.Renew(s.Context(), p.Worker(), nil); !errors.Is(err, keylinetype.ErrFenced) {
			s.Errorf("a lost worker is renewed: %v", err)
		}
		if list := s.beats(other); len(list) != 1 || list[0].Worker != other.Worker() {
			s.Errorf("live: %+v", list)
		}
		if marked, err := other.MarkLost(s.Context(), core.Beat{Worker: 999}); marked || err != nil {
			s.Errorf("nobody is marked: %v, %v", marked, err)
		}
	}},
	{"the records of a lost worker come back as suspects", func(s *suite) {
		p, other, r := s.Process(nil), s.Process(nil), s.Append("r", one())
		l := s.hold(p, r)
		s.recovers(other, 0)
		for crashes := 1; crashes <= 2; crashes++ {
			s.lost(p, other)
			s.recovers(other, 1)
			s.recovers(other, 0)
			if !s.fenced(other, l.Claim) {
				s.Error("the old claim loads")
			}
			s.flushes(p, settle(l), core.FlushFenced)
			p = s.Process(nil)
			last := l.Token
			if l = s.hold(p, r); l.Crashes != crashes || !l.Unclean || l.Token <= last {
				s.Errorf("%+v", l.Claim)
			}
		}
		f := keep(l)
		f.Clear = true
		s.flushes(p, f, core.FlushKept)
		if l = s.load(p, l.Claim); l.Crashes != 0 || l.Unclean {
			s.Errorf("cleared: %+v", l.Claim)
		}
	}},
	{"suspicion is cleared with the end of a claim too", func(s *suite) {
		p, other, r := s.Process(nil), s.Process(nil), s.Append("r", one())
		s.hold(p, r)
		s.lost(p, other)
		s.recovers(other, 1)
		l := s.hold(other, r)
		f := keep(l)
		f.Then = core.Release
		s.flushes(other, f, core.FlushGone)
		if l = s.hold(other, r); l.Crashes != 1 || !l.Unclean {
			s.Errorf("not cleared: %+v", l.Claim)
		}
		f = keep(l)
		f.Then, f.Clear = core.HandBack, true
		s.flushes(other, f, core.FlushGone)
		if m := s.mailbox(r); m.Crashes != 0 || m.Unclean {
			s.Errorf("%+v", m)
		}
	}},
	{"a worker that leaves is charged nothing, and its attempts that were written ahead are given back", func(s *suite) {
		c := s.Register(consumer("c"))
		p, other := s.Process(nil), s.Process(nil)
		l := s.started(p, "r", c)
		if err := p.Leave(s.Context(), p.Worker()); err != nil {
			s.Fatal(err)
		}
		if err := p.Renew(s.Context(), p.Worker(), nil); !errors.Is(err, keylinetype.ErrFenced) {
			s.Errorf("it renews: %v", err)
		}
		s.recovers(other, 1)
		l = s.hold(other, l.Record)
		if l.Crashes != 0 || !l.Unclean {
			s.Errorf("%+v", l.Claim)
		}
		if k := l.Checkpoints[0]; k.State != core.Ready || k.Attempt != 3 || k.Granted != 2 || k.Crashes != 1 {
			s.Errorf("%+v", k)
		}
	}},
	{"a lost worker's attempts that were written ahead stay as they are", func(s *suite) {
		c := s.Register(consumer("c"))
		p, other := s.Process(nil), s.Process(nil)
		l := s.started(p, "r", c)
		s.lost(p, other)
		s.recovers(other, 1)
		if k := s.hold(other, l.Record).Checkpoints[0]; k.State != core.Started || k.Attempt != 3 || k.Granted != 1 {
			s.Errorf("%+v", k)
		}
	}},
	{"a retried dead letter that was written ahead is given back too", func(s *suite) {
		c := s.Register(consumer("c"))
		p, other := s.Process(nil), s.Process(nil)
		l, dead := s.died(p, "r", c)
		l = s.retrying(p, l, dead, s.in(0))
		u := core.DeadUpdate{DeadRetry: l.Retries[0], Status: core.DeadWaiting, At: s.Now()}
		u.Attempt, u.Started = 5, true
		f := keep(l)
		f.DeadUpdates = []core.DeadUpdate{u}
		s.flushes(p, f, core.FlushKept)
		_ = p.Leave(s.Context(), p.Worker())
		s.recovers(other, 1)
		if d := s.hold(other, l.Record).Retries[0]; d.Started || d.Attempt != 5 || d.Granted != 5 {
			s.Errorf("%+v", d)
		}
	}},
	{"a worker with handlers that still run keeps its claims for a lease more", func(s *suite) {
		p, other, r := s.Process(nil), s.Process(nil), s.Append("r", one())
		l := s.hold(p, r)
		if err := p.LeaveLater(s.Context(), p.Worker()); err != nil {
			s.Fatal(err)
		}
		s.recovers(other, 0)
		if s.fenced(p, l.Claim) || !s.gone(p) {
			s.Error("its claim is lost already, or it is live")
		}
		s.flushes(p, keep(l), core.FlushKept)
		s.Advance(time.Hour)
		s.recovers(other, 1)
		if s.gone(p) {
			s.Error("it still has claims")
		}
		if l := s.hold(other, r); l.Crashes != 0 || !l.Unclean {
			s.Errorf("%+v", l.Claim)
		}
	}},
	{"what a lost claim wrote ahead is not given back by the next one", func(s *suite) {
		c := s.Register(consumer("c"))
		p, other := s.Process(nil), s.Process(nil)
		l := s.started(p, "r", c)
		s.lost(p, other)
		s.recovers(other, 1)
		s.claim(other, l.Record) // its answer is lost, so that nobody counts the crash
		s.Advance(time.Hour)
		if n, err := other.HandBackOrphans(s.Context(), other.Worker(), nil); err != nil || n != 1 {
			s.Errorf("%d, %v", n, err)
		}
		if l = s.hold(other, l.Record); l.Crashes != 1 || l.Checkpoints[0].State != core.Started || l.Checkpoints[0].Granted != 1 {
			s.Errorf("handed back: %+v", l)
		}
		if err := other.Leave(s.Context(), other.Worker()); err != nil {
			s.Fatal(err)
		}
		third := s.Process(nil)
		s.recovers(third, 1)
		if l = s.hold(third, l.Record); l.Checkpoints[0].State != core.Started || l.Checkpoints[0].Granted != 1 {
			s.Errorf("after it left: %+v", l)
		}
	}},
	{"claims that nobody holds are handed back, without a charge", func(s *suite) {
		c := s.Register(consumer("c"))
		p := s.Process(nil)
		orphan, held := s.started(p, "orphan", c), s.hold(p, s.Append("held", one()))
		stale := s.claim(p, s.Append("stale", one()))
		s.Advance(time.Hour)
		list := []core.Held{{Record: held.Record, Token: held.Token}, {Record: stale.Record, Token: stale.Token - 1}}
		if n, err := p.HandBackOrphans(s.Context(), p.Worker(), list); err != nil || n != 2 {
			s.Errorf("%d, %v", n, err)
		}
		if n, err := p.HandBackOrphans(s.Context(), p.Worker(), list); err != nil || n != 0 {
			s.Errorf("again: %d, %v", n, err)
		}
		if s.fenced(p, held.Claim) || !s.fenced(p, orphan.Claim) || !s.fenced(p, stale) {
			s.Error("the wrong ones")
		}
		l := s.hold(p, orphan.Record)
		if k := l.Checkpoints[0]; l.Crashes != 0 || !l.Unclean || k.State != core.Ready || k.Granted != 2 {
			s.Errorf("%+v", l)
		}
	}},
	{"a worker that joins again is another one", func(s *suite) {
		p, r := s.Process(nil), s.Append("r", one())
		l := s.hold(p, r)
		first := p.Worker()
		_ = p.Leave(s.Context(), first)
		id, err := p.Join(s.Context(), core.Worker{Name: "w", Lease: Lease})
		if err != nil || id <= first {
			s.Fatal(id, err)
		}
		p.Become(id)
		s.flushes(p, settle(l), core.FlushFenced)
		s.recovers(p, 1)
		s.flushes(p, settle(s.hold(p, r)), core.FlushGone)
	}},
}
