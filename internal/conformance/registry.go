package conformance

import (
	"time"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// later hands a record back, due by itself so many hours ahead.
func (s *suite) later(p Process, l core.Loaded, hours int, rows ...core.Checkpoint) {
	s.Helper()
	f := keep(l, rows...)
	f.Then, f.DueAt = core.HandBack, s.in(hours)
	s.flushes(p, f, core.FlushGone)
}

func (s *suite) status(id int32) core.Status {
	s.Helper()
	return s.Rows().Consumers[id-1].Status
}

var registryCases = []testCase{
	{"a consumer is hosted where the code is not older than its row", func(s *suite) {
		a, b := s.Register(consumer("a")), s.Register(consumer("b"))
		s.Register(consumer("c"))
		p := s.Process(map[string]int{"a": 1, "b": 1})
		s.Revise(b, func(c *core.Consumer) { c.Types = []string{"x.*"} })
		reg, err := p.Registry(s.Context())
		if err != nil || reg.Epoch != s.Rows().Epoch || len(reg.Consumers) != 3 {
			s.Fatal(reg, err)
		}
		if !reg.Consumer(a).Hosted || reg.Consumer(b).Hosted || reg.Consumers[2].Hosted || reg.Consumer(b).Revision != 2 {
			s.Errorf("%+v", reg.Consumers)
		}
		if got := reg.Applies(reg.Consumer(b), "t", 1); got != core.NotApplicable {
			s.Errorf("the revised one takes t: %v", got)
		}
	}},
	{"a retired consumer is hosted nowhere", func(s *suite) {
		a := s.Register(consumer("a"))
		p := s.Process(map[string]int{"a": 1})
		s.SetStatus(a, core.Retired)
		if reg, err := p.Registry(s.Context()); err != nil || reg.Consumer(a).Hosted || reg.Consumer(a).Status != core.Retired {
			s.Error(reg, err)
		}
	}},
	{"only the table's changes of status are allowed", func(s *suite) {
		type change struct{ from, to core.Status }
		allowed := map[change]bool{}
		for from, list := range map[core.Status][]core.Status{
			core.Active: {core.Paused, core.Disabled, core.Retired}, core.Paused: {core.Active, core.Disabled, core.Retired},
			core.Disabled: {core.Active, core.Retired}, core.Backfilling: {core.Disabled, core.Retired},
		} {
			for _, to := range list {
				allowed[change{from, to}] = true
			}
		}
		all := []core.Status{core.Active, core.Paused, core.Disabled, core.Backfilling, core.Retired}
		for i, from := range all {
			for j, to := range all {
				start := keylinetype.Now()
				if from == core.Backfilling {
					start = keylinetype.Beginning()
				}
				id := s.Register(consumer(string(rune('a'+i))+string(rune('a'+j)), func(c *core.Consumer) { c.Start = start }))
				if from != core.Active && from != core.Backfilling {
					s.SetStatus(id, from)
					s.Sweep()
				}
				epoch := s.Rows().Epoch
				if got := s.SetStatus(id, to); got != allowed[change{from, to}] || (s.Rows().Epoch > epoch) != got {
					s.Errorf("%s to %s: %v", from, to, got)
				}
			}
		}
	}},
	{"a disabled consumer comes back only after its rows are gone", func(s *suite) {
		c := s.Register(consumer("c"))
		p, r := s.Process(nil), s.Append("r", some(2)...)
		l := s.hold(p, r)
		f := keep(l, ready(r, c, 0))
		f.Cursor = 2
		s.flushes(p, f, core.FlushKept)
		s.SetStatus(c, core.Disabled)
		if s.SetStatus(c, core.Active) {
			s.Error("active again at once")
		}
		s.Sweep()
		if rows := s.row(r).Checkpoints; len(rows) != 0 {
			s.Errorf("%+v", rows)
		}
		if !s.SetStatus(c, core.Active) {
			s.Error("not active again")
		}
	}},
	{"every registry change makes what waits due now, and clears what is wanted", func(s *suite) {
		c, d := s.Register(consumer("c")), s.Register(consumer("d"))
		s.Sweep()
		p := s.Process(nil)
		for what, change := range map[string]func(){
			"a new consumer":   func() { s.Register(consumer("new")) },
			"a pause":          func() { s.SetStatus(c, core.Paused) },
			"a resumption":     func() { s.SetStatus(c, core.Paused); s.SetStatus(c, core.Active) },
			"a new revision":   func() { s.Revise(d, func(c *core.Consumer) { c.Versions = []int{1} }) },
			"disabling":        func() { s.SetStatus(d, core.Disabled) },
			"a revision twice": func() { s.Revise(c, func(*core.Consumer) {}); s.Revise(c, func(*core.Consumer) {}) },
		} {
			r, claimed := s.Append(what, one()), s.Append(what+", claimed", one())
			f := keep(s.hold(p, r), ready(r, c, 0))
			f.Then, f.DueAt, f.Wants, f.WantsDueAt = core.HandBack, s.in(5), []int32{c}, s.in(4)
			s.flushes(p, f, core.FlushGone)
			kept := s.hold(p, claimed)
			change()
			s.Sweep()
			if m := s.mailbox(r); m.DueAt.After(s.Now()) || m.Wants != nil {
				s.Errorf("%s: %+v", what, m)
			}
			if s.fenced(p, kept.Claim) {
				s.Errorf("%s: the claim of another record is lost", what)
			}
			for _, row := range s.Rows().Consumers {
				if row.Sweep != "" {
					s.Errorf("%s: %s is still swept: %s", what, row.Name, row.Sweep)
				}
			}
		}
	}},
	{"a resumed consumer's records are due although they had settled", func(s *suite) {
		c := s.Register(consumer("c"))
		p, r := s.Process(nil), s.Append("r", some(2)...)
		s.SetStatus(c, core.Paused)
		s.Sweep()
		l := s.hold(p, r)
		f := settle(l)
		f.Upserts = []core.Checkpoint{ready(r, c, 1)}
		s.flushes(p, f, core.FlushGone)
		s.SetStatus(c, core.Active)
		s.Sweep()
		if m := s.mailbox(r); m.DueAt.After(s.Now()) {
			s.Errorf("%+v", m)
		}
		if l := s.hold(p, r); l.Base != 2 || len(l.Events) != 1 || l.Checkpoints[0].Seq != 1 {
			s.Errorf("%+v", l)
		}
	}},
	{"a sweep passes over a record that an appender has, and comes back to it", func(s *suite) {
		c := s.Register(consumer("c"))
		s.Sweep()
		p, r, q := s.Process(nil), s.Append("r", one()), s.Append("q", one())
		s.later(p, s.hold(p, r), 5)
		s.later(p, s.hold(p, q), 5)
		a := s.Begin("new", one())
		held := s.Begin("q", one()) // it makes the record due when it commits
		s.Revise(c, func(*core.Consumer) {})
		s.Sweep()
		if m := s.mailbox(r); m.DueAt.After(s.Now()) {
			s.Errorf("%+v", m)
		}
		s.near("the record that is held", s.mailbox(q).DueAt, 5)
		if row := s.Rows().Consumers[0]; row.Sweep != "wake" {
			s.Errorf("%+v", row)
		}
		held.Rollback()
		s.Sweep()
		if m := s.mailbox(q); m.DueAt.After(s.Now()) {
			s.Errorf("%+v", m)
		}
		if row := s.Rows().Consumers[0]; row.Sweep != "" {
			s.Errorf("%+v", row)
		}
		a.Commit()
	}},
	{"a consumer that starts at the beginning gets its row on every record, and then is active", func(s *suite) {
		p, settled, waiting := s.Process(nil), s.Append("settled", some(2)...), s.Append("waiting", one())
		s.flushes(p, settle(s.hold(p, settled)), core.FlushGone)
		s.later(p, s.hold(p, waiting), 5)
		held := s.Append("held", one())
		a := s.Begin("held", one())
		c := s.Register(consumer("c", func(c *core.Consumer) { c.Start = keylinetype.Beginning() }))
		s.Sweep()
		if s.status(c) != core.Backfilling {
			s.Errorf("%s while a record is held", s.status(c))
		}
		a.Commit()
		s.Sweep()
		if s.status(c) != core.Active {
			s.Errorf("%s", s.status(c))
		}
		for record, head := range map[int64]int64{settled: 2, waiting: 1, held: 2} {
			rows := s.row(record).Checkpoints
			want := ready(record, c, 0)
			want.LiveFrom = head
			if len(rows) != 1 || rows[0] != want {
				s.Errorf("%d: %+v", record, rows)
			}
			if m := s.mailbox(record); m.DueAt.After(s.Now()) {
				s.Errorf("%d: %+v", record, m)
			}
		}
	}},
	{"a consumer that starts at a time begins with the first event from then on", func(s *suite) {
		p, old, both, waiting := s.Process(nil), s.Append("old", one()), s.Append("both", some(2)...), s.Append("waiting", one())
		s.flushes(p, settle(s.hold(p, old)), core.FlushGone)
		s.flushes(p, settle(s.hold(p, both)), core.FlushGone)
		s.Advance(2 * time.Hour)
		s.Append("both", one())
		young := s.Append("young", one())
		c := s.Register(consumer("c", func(c *core.Consumer) { c.Start = keylinetype.At(s.in(-1)) }))
		s.Sweep()
		if rows := s.row(old).Checkpoints; len(rows) != 0 {
			s.Errorf("a settled record without such an event: %+v", rows)
		}
		for record, seq := range map[int64]int64{both: 2, young: 0, waiting: 1} {
			if rows := s.row(record).Checkpoints; len(rows) != 1 || rows[0].Seq != seq {
				s.Errorf("%d: %+v, want seq %d", record, rows, seq)
			}
		}
		if s.status(c) != core.Active {
			s.Errorf("%s", s.status(c))
		}
	}},
	{"a consumer that is declared only has nothing to catch up with", func(s *suite) {
		s.Append("r", one())
		c := s.Register(consumer("c", func(c *core.Consumer) { c.Start, c.ContractOnly = keylinetype.Beginning(), true }))
		if s.status(c) != core.Active {
			s.Errorf("%s", s.status(c))
		}
	}},
	{"a backfill that is disabled leaves no rows", func(s *suite) {
		r := s.Append("r", one())
		a := s.Begin("r", one())
		s.Append("q", one())
		c := s.Register(consumer("c", func(c *core.Consumer) { c.Start = keylinetype.Beginning() }))
		s.Sweep()
		if !s.SetStatus(c, core.Disabled) {
			s.Fatal("refused")
		}
		s.Sweep()
		a.Commit()
		s.Sweep()
		for _, row := range s.Rows().Records {
			if len(row.Checkpoints) != 0 {
				s.Errorf("%+v", row)
			}
		}
		if s.status(c) != core.Disabled {
			s.Errorf("%s", s.status(c))
		}
		_ = r
	}},
}
