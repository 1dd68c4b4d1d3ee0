package conformance

import (
	"time"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/internal/sim"
)

// everything is a flush that writes in every table.
func everything(s *suite, l core.Loaded, consumer int32) core.Flush {
	at := s.in(2)
	row := core.Checkpoint{Record: l.Record, Consumer: consumer, Seq: 1, State: core.Backoff, Attempt: 2, NextAttemptAt: at, FirstFailedAt: at, ErrorCode: "boom"}
	f := keep(l, row)
	f.Cursor = 1
	f.DeadLetters = []core.DeadLetter{{Record: l.Record, Seq: 1, Consumer: consumer, Attempt: 1, EventID: l.Events[0].ID, Reason: core.DeadPermanent, Code: "c", Message: "m", FirstFailedAt: at, FailedAt: at}}
	f.Failures = []core.Failure{{Record: l.Record, Seq: 2, Consumer: consumer, Attempt: 2, At: at, Code: "boom", Message: "bang"}}
	f.Skips = []core.Skip{{Record: l.Record, Seq: 1, Consumer: consumer, Attempt: 1, Code: "handler", Reason: "no", At: at}}
	for _, c := range l.Commands {
		f.Applied = append(f.Applied, core.AppliedCommand{ID: c.ID, Done: true, Detail: "did"})
	}
	return f
}

// unchanged runs f and fails where the tables are not the same afterwards.
func (s *suite) unchanged(what string, f func()) {
	s.Helper()
	before := Text(s.Rows(), s.Now())
	f()
	if after := Text(s.Rows(), s.Now()); after != before {
		s.Errorf("%s changes something. Before:\n%safter:\n%s", what, before, after)
	}
}

var flushCases = []testCase{
	{"a flush writes all its parts, once, however often it is sent", func(s *suite) {
		c := s.Register(consumer("c"))
		p, r := s.Process(nil), s.Append("r", some(2)...)
		s.Command(core.Command{Record: r, Kind: core.CommandRetry, Consumer: c, Actor: "op"})
		l := s.hold(p, r)
		f := everything(s, l, c)
		s.flushes(p, f, core.FlushKept)
		row := s.row(r)
		if len(row.Checkpoints) != 1 || len(row.DeadLetters) != 1 || len(row.Failures) != 1 || len(row.Skips) != 1 ||
			!row.Commands[0].Applied || !row.Commands[0].Done || row.Commands[0].Detail != "did" || row.Mailbox.Cursor != 1 || row.Mailbox.Token != l.Token {
			s.Errorf("%+v", row)
		}
		s.unchanged("the same again", func() { s.flushes(p, f, core.FlushKept) })
		s.unchanged("the same again, its answer lost", func() {
			if res := p.Apply(f, s.Rows().Epoch, true); res.Status != core.FlushKept {
				s.Errorf("%+v", res)
			}
		})
		f = settle(l)
		f.Deletes = []int32{c}
		s.flushes(p, f, core.FlushGone)
		if row := s.row(r); row.Mailbox != nil || len(row.Checkpoints) != 0 || row.Cursor != 2 || len(row.DeadLetters) != 1 {
			s.Errorf("settled: %+v", row)
		}
	}},
	{"a claim's end is not had twice: who asks again is fenced", func(s *suite) {
		p := s.Process(nil)
		for key, then := range map[string]core.Disposition{"settle": core.Settle, "hand back": core.HandBack, "release": core.Release} {
			f := settle(s.hold(p, s.Append(key, one())))
			f.Then = then
			if res := p.Apply(f, s.Rows().Epoch, true); res.Status != core.FlushFenced {
				s.Errorf("%s, its answer lost: %+v", key, res)
			}
			if m := s.row(f.Record).Mailbox; (m == nil) != (then == core.Settle) || m != nil && m.ClaimedBy != 0 {
				s.Errorf("%s: %+v", key, m)
			}
		}
	}},
	{"a flush without the claim writes nothing", func(s *suite) {
		c := s.Register(consumer("c"))
		p, other, r := s.Process(nil), s.Process(nil), s.Append("r", some(2)...)
		stale := s.hold(p, r)
		s.flushes(p, core.Flush{Record: r, Token: stale.Token, Head: 2, Then: core.Release}, core.FlushGone)
		s.unchanged("a flush after the release", func() { s.flushes(p, everything(s, stale, c), core.FlushFenced) })
		theirs := s.hold(other, r)
		s.unchanged("a flush with an old token", func() { s.flushes(p, everything(s, stale, c), core.FlushFenced) })
		s.unchanged("a flush with another worker's token", func() { s.flushes(p, everything(s, theirs, c), core.FlushFenced) })
		s.flushes(other, settle(theirs), core.FlushGone)
		s.unchanged("a flush of a settled record", func() { s.flushes(other, everything(s, theirs, c), core.FlushFenced) })
		nowhere := everything(s, theirs, c)
		nowhere.Record = 99999
		s.unchanged("a flush of no record", func() { s.flushes(p, nowhere, core.FlushFenced) })
	}},
	{"a flush planned under another epoch writes nothing, and says so before all else", func(s *suite) {
		c := s.Register(consumer("c"))
		p, r := s.Process(nil), s.Append("r", some(2)...)
		l := s.hold(p, r)
		before := s.Rows().Epoch
		s.Register(consumer("d"))
		for _, f := range []core.Flush{everything(s, l, c), settle(l), {Record: r, Token: 1, Head: 2}} {
			s.unchanged("a flush of the old epoch", func() {
				if res := p.Apply(f, before, false); res.Status != core.FlushEpoch || res.Head != 0 {
					s.Errorf("%+v", res)
				}
			})
		}
		s.flushes(p, settle(l), core.FlushGone)
	}},
	{"a record settles only at its head", func(s *suite) {
		p, r := s.Process(nil), s.Append("r", one())
		l := s.hold(p, r)
		s.Append("r", one())
		if res := s.flushes(p, settle(l), core.FlushKept); res.Head != 2 || res.Busy || res.Pending {
			s.Errorf("%+v", res)
		}
		if row := s.row(r); row.Cursor != 0 || row.Mailbox.Cursor != 1 || row.Mailbox.Token != l.Token {
			s.Errorf("what was to be written beside it: %+v", row)
		}
		l = s.load(p, l.Claim)
		if res := s.flushes(p, settle(l), core.FlushGone); res.Head != 2 {
			s.Errorf("%+v", res)
		}
	}},
	{"while an appender has the record it neither settles nor is handed back, and can be released", func(s *suite) {
		p, r := s.Process(nil), s.Append("r", one())
		l := s.hold(p, r)
		a := s.Begin("r", one())
		for _, then := range []core.Disposition{core.Settle, core.HandBack} {
			f := settle(l)
			f.Then = then
			if res := s.flushes(p, f, core.FlushKept); !res.Busy || res.Head != 0 || res.Pending {
				s.Errorf("%d: %+v", then, res)
			}
		}
		if res := s.flushes(p, keep(l), core.FlushKept); res.Busy {
			s.Errorf("keep: %+v", res)
		}
		f := settle(l)
		f.Then, f.DueAt = core.Release, s.in(5)
		s.flushes(p, f, core.FlushGone)
		a.Commit()
		s.Advance(time.Hour)
		if l := s.hold(p, r); l.Head != 2 || l.Base != 1 {
			s.Errorf("%+v", l)
		}
	}},
	{"a hand-back looks for events and commands first", func(s *suite) {
		c := s.Register(consumer("c"))
		p, r := s.Process(nil), s.Append("r", one())
		l := s.hold(p, r)
		back := keep(l)
		back.Then, back.DueAt = core.HandBack, s.in(3)
		s.Append("r", one())
		if res := s.flushes(p, back, core.FlushKept); res.Head != 2 || res.Pending {
			s.Errorf("after an append: %+v", res)
		}
		id := s.Command(core.Command{Record: r, Kind: core.CommandRetry, Consumer: c, Actor: "op"})
		back.Head = 2
		if res := s.flushes(p, back, core.FlushKept); !res.Pending {
			s.Errorf("after a command: %+v", res)
		}
		end := settle(l)
		end.Head = 2
		if res := s.flushes(p, end, core.FlushKept); !res.Pending {
			s.Errorf("a settle after a command: %+v", res)
		}
		back.Applied = []core.AppliedCommand{{ID: id}}
		s.flushes(p, back, core.FlushGone)
		s.near("due", s.mailbox(r).DueAt, 3)
	}},
	{"a hand-back says when and for whom, and no time means not by itself", func(s *suite) {
		b := s.Register(consumer("b"))
		p, r := s.Process(nil), s.Append("r", one())
		f := keep(s.hold(p, r))
		f.Then, f.Wants, f.WantsDueAt = core.HandBack, []int32{b}, s.in(4)
		s.flushes(p, f, core.FlushGone)
		m := s.mailbox(r)
		if m.ClaimedBy != 0 || m.DueAt.Before(sim.Never) || len(m.Wants) != 1 || m.Wants[0] != b {
			s.Errorf("%+v", m)
		}
		s.near("wanted", m.WantsDueAt, 4)
		if _, ok, err := p.NextDue(s.Context(), nil); ok || err != nil {
			s.Errorf("due by itself: %v", err)
		}
	}},
	{"a release is due within a second, never before now, and wants nothing", func(s *suite) {
		b := s.Register(consumer("b"))
		p, r := s.Process(nil), s.Append("r", one())
		for what, due := range map[string]time.Time{"no time": {}, "a time long past": s.in(-5), "a time far ahead": s.in(5)} {
			f := keep(s.hold(p, r))
			f.Then, f.DueAt, f.Wants, f.WantsDueAt = core.Release, due, []int32{b}, s.in(1)
			before := s.Now()
			s.flushes(p, f, core.FlushGone)
			if m := s.mailbox(r); m.DueAt.Before(before) || m.DueAt.After(s.Now().Add(time.Second)) || m.Wants != nil || m.ClaimedBy != 0 {
				s.Errorf("%s: %+v, now %v", what, m, s.Now())
			}
		}
	}},
	{"the cursor never goes back", func(s *suite) {
		p, r := s.Process(nil), s.Append("r", some(3)...)
		l := s.hold(p, r)
		f := keep(l)
		f.Cursor = 2
		s.flushes(p, f, core.FlushKept)
		f.Cursor = 1
		s.flushes(p, f, core.FlushKept)
		if m := s.mailbox(r); m.Cursor != 2 {
			s.Errorf("cursor %d", m.Cursor)
		}
	}},
	{"a record that has settled goes on from its cursor", func(s *suite) {
		p, r := s.Process(nil), s.Append("r", some(3)...)
		s.flushes(p, settle(s.hold(p, r)), core.FlushGone)
		s.Append("r", one())
		if l := s.hold(p, r); l.Base != 3 || l.Head != 4 || len(l.Events) != 1 {
			s.Errorf("%+v", l)
		}
	}},
	{"an outcome whose texts cannot be written counts without them", func(s *suite) {
		c := s.Register(consumer("c"))
		p := s.Process(nil)
		for key, text := range map[string]string{"nul": "a\x00b", "invalid": "a\xffb"} {
			l := s.hold(p, s.Append(key, some(2)...))
			f := everything(s, l, c)
			f.DeadLetters[0].Message, f.Failures[0].Code, f.Skips[0].Reason, f.Upserts[0].ErrorCode = text, text, text, text
			if res := s.flushes(p, f, core.FlushKept); !res.Rewritten {
				s.Errorf("%s: %+v", key, res)
			}
			row := s.row(l.Record)
			if row.Checkpoints[0].ErrorCode != core.CodeUnwritable || row.DeadLetters[0].ErrorCode != core.CodeUnwritable ||
				row.Failures[0].Code != core.CodeUnwritable || row.Skips[0].Reason != "" || row.Checkpoints[0].Attempt != 2 {
				s.Errorf("%s: %+v", key, row)
			}
		}
	}},
}
