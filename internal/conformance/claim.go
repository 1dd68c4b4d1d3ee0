package conformance

import (
	"errors"
	"slices"
	"time"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/internal/sim"
	"github.com/keylinehq/keyline/keylinetype"
)

func ids(claims []core.Claim) (list []int64) {
	for _, c := range claims {
		list = append(list, c.Record)
	}
	slices.Sort(list)
	return list
}

var claimCases = []testCase{
	{"a claim takes what is due, the longest due first, up to its limit", func(s *suite) {
		p := s.Process(nil)
		var all []int64
		for _, key := range []string{"a", "b", "c"} {
			all = append(all, s.Append(key, one()))
		}
		if got := ids(s.claims(p, core.ClaimRequest{Limit: 2})); !slices.Equal(got, all[:2]) {
			s.Errorf("first %v, want %v", got, all[:2])
		}
		if got := ids(s.claims(p, core.ClaimRequest{Limit: 2})); !slices.Equal(got, all[2:]) {
			s.Errorf("then %v, want %v", got, all[2:])
		}
		if got := s.claims(p, core.ClaimRequest{Limit: 2}); len(got) != 0 {
			s.Errorf("claimed twice: %+v", got)
		}
	}},
	{"a bounded claim that finds less than it may take finds everything", func(s *suite) {
		p := s.Process(nil)
		s.Append("a", one())
		s.claims(p, core.ClaimRequest{Limit: 1})
		s.Append("b", one())
		s.Append("c", one())
		got, err := p.Claim(s.Context(), core.ClaimRequest{Worker: p.Worker(), Limit: 10})
		if err != nil || len(got) != 2 {
			s.Errorf("%+v, %v", got, err)
		}
	}},
	{"every claim draws a higher token", func(s *suite) {
		p, r := s.Process(nil), s.Append("r", one())
		last := int64(0)
		for range 3 {
			l := s.hold(p, r)
			if l.Token <= last || l.Crashes != 0 || l.Unclean {
				s.Errorf("%+v after token %d", l.Claim, last)
			}
			last = l.Token
			s.flushes(p, core.Flush{Record: r, Token: l.Token, Head: l.Head, Then: core.Release}, core.FlushGone)
			if at := s.mailbox(r).Token; at <= last {
				s.Errorf("token %d after the loss of %d", at, last)
			}
		}
	}},
	{"what is not due is claimed by its name alone", func(s *suite) {
		p, r := s.Process(nil), s.Append("r", one())
		l := s.hold(p, r)
		f := keep(l)
		f.Then, f.DueAt = core.HandBack, s.in(2)
		s.flushes(p, f, core.FlushGone)
		if got := s.claims(p, core.ClaimRequest{Limit: 9}); len(got) != 0 {
			s.Errorf("not due, and claimed: %+v", got)
		}
		if d, ok, err := p.NextDue(s.Context(), nil); err != nil || !ok || d < time.Hour || d > 2*time.Hour {
			s.Errorf("next due in %v, %v, %v", d, ok, err)
		}
		s.Advance(time.Hour)
		if got := s.claims(p, core.ClaimRequest{Limit: 9}); len(got) != 0 {
			s.Errorf("an hour too early: %+v", got)
		}
		s.Advance(time.Hour)
		if d, ok, err := p.NextDue(s.Context(), nil); err != nil || !ok || d != 0 {
			s.Errorf("due, and next due in %v, %v, %v", d, ok, err)
		}
		if got := s.claims(p, core.ClaimRequest{Limit: 9}); len(got) != 1 {
			s.Errorf("due, and not claimed")
		}
		if _, ok, err := p.NextDue(s.Context(), nil); err != nil || ok {
			s.Errorf("claimed, and still due: %v, %v", ok, err)
		}
		if got := s.claims(p, core.ClaimRequest{Limit: 1, Record: r}); len(got) != 0 {
			s.Errorf("claimed by its name while claimed: %+v", got)
		}
		if got := s.claims(p, core.ClaimRequest{Limit: 1, Record: 99999}); len(got) != 0 {
			s.Errorf("there is no such record: %+v", got)
		}
	}},
	{"who hosts a wanted consumer claims, and nobody else", func(s *suite) {
		a, b := s.Register(consumer("a")), s.Register(consumer("b"))
		p, r := s.Process(nil), s.Append("r", one())
		f := keep(s.hold(p, r))
		f.Then, f.Wants, f.WantsDueAt = core.HandBack, []int32{b}, s.in(1)
		s.flushes(p, f, core.FlushGone)
		if _, ok, _ := p.NextDue(s.Context(), []int32{a}); ok {
			s.Error("due for who hosts nothing of it")
		}
		if d, ok, _ := p.NextDue(s.Context(), []int32{a, b}); !ok || d < time.Minute {
			s.Errorf("next due for its host in %v, %v", d, ok)
		}
		if got := s.claims(p, core.ClaimRequest{Limit: 9, Hosted: []int32{a, b}}); len(got) != 0 {
			s.Errorf("an hour too early: %+v", got)
		}
		s.Advance(time.Hour)
		if got := s.claims(p, core.ClaimRequest{Limit: 9, Hosted: []int32{a}}); len(got) != 0 {
			s.Errorf("claimed by who hosts nothing of it: %+v", got)
		}
		if got := s.claims(p, core.ClaimRequest{Limit: 9}); len(got) != 0 {
			s.Errorf("claimed by who hosts nothing: %+v", got)
		}
		if got := s.claims(p, core.ClaimRequest{Limit: 9, Hosted: []int32{a, b}}); len(got) != 1 {
			s.Error("not claimed by its host")
		}
		if m := s.mailbox(r); m.Wants != nil || !m.WantsDueAt.IsZero() {
			s.Errorf("claimed, and it wants: %+v", m)
		}
	}},
	{"what is due for everybody goes before what is wanted", func(s *suite) {
		a := s.Register(consumer("a"))
		p := s.Process(nil)
		wanting := s.Append("wanting", one())
		f := keep(s.hold(p, wanting))
		f.Then, f.Wants, f.WantsDueAt = core.HandBack, []int32{a}, s.Now().Add(-time.Hour)
		s.flushes(p, f, core.FlushGone)
		due := s.Append("due", one())
		if got := ids(s.claims(p, core.ClaimRequest{Limit: 1, Hosted: []int32{a}})); !slices.Equal(got, []int64{due}) {
			s.Errorf("first %v, want %d", got, due)
		}
		if got := ids(s.claims(p, core.ClaimRequest{Limit: 1, Hosted: []int32{a}})); !slices.Equal(got, []int64{wanting}) {
			s.Errorf("then %v, want %d", got, wanting)
		}
	}},
	{"new work clears what a record wants, and makes it due", func(s *suite) {
		a := s.Register(consumer("a"))
		p, r := s.Process(nil), s.Append("r", one())
		for name, work := range map[string]func(){
			"append":  func() { s.Append("r", one()) },
			"command": func() { s.Command(core.Command{Record: r, Kind: core.CommandRetry, Consumer: a, Actor: "op"}) },
		} {
			l := s.hold(p, r)
			f := keep(l)
			for _, c := range l.Commands {
				f.Applied = append(f.Applied, core.AppliedCommand{ID: c.ID, Done: true})
			}
			s.flushes(p, f, core.FlushKept)
			f = keep(l)
			f.Then, f.Wants, f.WantsDueAt, f.DueAt = core.HandBack, []int32{a}, s.in(3), s.in(5)
			s.flushes(p, f, core.FlushGone)
			work()
			if m := s.mailbox(r); m.Wants != nil || m.DueAt.After(s.Now()) {
				s.Errorf("after an %s: %+v", name, m)
			}
		}
	}},
	{"a worker that is not live claims nothing", func(s *suite) {
		p, other := s.Process(nil), s.Process(nil)
		r := s.Append("r", one())
		s.lost(other, p)
		if err := p.Leave(s.Context(), p.Worker()); err != nil {
			s.Fatal(err)
		}
		for _, worker := range []int64{p.Worker(), other.Worker(), 999} {
			if _, err := p.Claim(s.Context(), core.ClaimRequest{Worker: worker, Limit: 1, Unbounded: true}); !errors.Is(err, keylinetype.ErrFenced) {
				s.Errorf("worker %d: %v", worker, err)
			}
		}
		if m := s.mailbox(r); m.ClaimedBy != 0 {
			s.Errorf("claimed by %d", m.ClaimedBy)
		}
	}},
	{"a record whose appender has not ended is claimed if it was due before", func(s *suite) {
		p, r := s.Process(nil), s.Append("r", one())
		a := s.Begin("r", one())
		l := s.hold(p, r)
		if l.Head != 1 || len(l.Events) != 1 {
			s.Errorf("what is not committed is seen: %+v", l)
		}
		a.Commit()
		if _, news, err := p.News(s.Context(), []int64{r}); err != nil || len(news) != 1 || news[0].Head != 2 {
			s.Errorf("news %+v, %v", news, err)
		}
	}},
	{"an append that is rolled back leaves nothing", func(s *suite) {
		p, r := s.Process(nil), s.Append("r", one())
		s.flushes(p, settle(s.hold(p, r)), core.FlushGone)
		s.Begin("r", one(), one()).Rollback()
		if row := s.row(r); row.Head != 1 || row.Mailbox != nil {
			s.Errorf("%+v", row)
		}
		s.Append("r", one())
		if l := s.hold(p, r); l.Head != 2 || len(l.Events) != 1 || l.Events[0].Seq != 2 {
			s.Errorf("after it: %+v", l)
		}
	}},
}

var loadCases = []testCase{
	{"a load tells all of a record", func(s *suite) {
		c, tx := s.Register(consumer("c")), s.Register(consumer("tx", func(c *core.Consumer) { c.Transactional = true }))
		p, r := s.Process(nil), s.Append("r", some(6)...)
		l := s.hold(p, r)
		if l.Key != "r" || l.Tenant != "" || l.Head != 6 || l.Base != 0 || len(l.Events) != 6 || len(l.Checkpoints)+len(l.Commands)+len(l.Retries) != 0 {
			s.Fatalf("%+v", l)
		}
		at := s.in(3)
		f := keep(l, core.Checkpoint{Record: r, Consumer: c, Seq: 1, State: core.Backoff, Attempt: 2, Granted: 1, Crashes: 1,
			NextAttemptAt: at, FirstFailedAt: at, ErrorCode: "boom", LiveFrom: 3, RedeliverTo: 2}, ready(r, tx, 4))
		f.Cursor = 4
		s.flushes(p, f, core.FlushKept)
		id := s.Command(core.Command{Record: r, Kind: core.CommandRetry, Consumer: c, Actor: "op", Reason: "why"})
		l = s.load(p, l.Claim)
		slices.SortFunc(l.Checkpoints, func(a, b core.Checkpoint) int { return int(a.Consumer - b.Consumer) })
		if l.Base != 4 || len(l.Checkpoints) != 2 || l.Checkpoints[1] != ready(r, tx, 4) {
			s.Errorf("%+v", l)
		}
		if got, want := checkpoint(l.Checkpoints[0], s.Now()), checkpoint(f.Upserts[0], s.Now()); got != want {
			s.Errorf("row %s, want %s", got, want)
		}
		if len(l.Commands) != 1 || l.Commands[0] != (core.Command{ID: id, Record: r, Kind: core.CommandRetry, Consumer: c, Actor: "op", Reason: "why"}) {
			s.Errorf("commands %+v", l.Commands)
		}
	}},
	{"a load reads events above the base and above each row that is not parked, each once", func(s *suite) {
		a, b, c := s.Register(consumer("a")), s.Register(consumer("b")), s.Register(consumer("c"))
		p, r := s.Process(nil), s.Append("r", some(9)...)
		l := s.hold(p, r)
		f := keep(l, ready(r, a, 2), ready(r, b, 3), core.Checkpoint{Record: r, Consumer: c, Seq: 0, State: core.Parked, Attempt: 1})
		f.Cursor = 6
		s.flushes(p, f, core.FlushKept)
		list, err := p.Load(s.Context(), []core.LoadRequest{{Claim: l.Claim, Limit: 2}})
		if err != nil || len(list) != 1 {
			s.Fatal(list, err)
		}
		var seqs []int64
		for _, e := range list[0].Events {
			seqs = append(seqs, e.Seq)
		}
		if want := []int64{3, 4, 5, 7, 8}; !slices.Equal(seqs, want) {
			s.Errorf("events %v, want %v", seqs, want)
		}
	}},
	{"the largest limit of a call holds for all its records", func(s *suite) {
		p, r, q := s.Process(nil), s.Append("r", some(5)...), s.Append("q", some(5)...)
		list, err := p.Load(s.Context(), []core.LoadRequest{{Claim: s.claim(p, r), Limit: 1}, {Claim: s.claim(p, q), Limit: 3}})
		if err != nil || len(list) != 2 || len(list[0].Events) != 3 || len(list[1].Events) != 3 {
			s.Errorf("%+v, %v", list, err)
		}
	}},
	{"a claim that is lost is left out of a load", func(s *suite) {
		p, r, q := s.Process(nil), s.Append("r", one()), s.Append("q", one())
		lost, kept := s.claim(p, r), s.claim(p, q)
		s.flushes(p, core.Flush{Record: r, Token: lost.Token, Head: 1, Then: core.Release}, core.FlushGone)
		list, err := p.Load(s.Context(), []core.LoadRequest{{Claim: lost, Limit: 9}, {Claim: kept, Limit: 9}, {Claim: core.Claim{Record: 99999, Token: 1}, Limit: 9}})
		if err != nil || len(list) != 1 || list[0].Record != q {
			s.Errorf("%+v, %v", list, err)
		}
	}},
	{"more events are loaded by ranges", func(s *suite) {
		p, r, q := s.Process(nil), s.Append("r", some(5)...), s.Append("q", sim.NewEvent{Type: "u", Version: 3})
		list, err := p.LoadEvents(s.Context(), []core.EventRange{{Record: q, From: 0, Limit: 9}, {Record: r, From: 1, Limit: 2}, {Record: r, From: 5, Limit: 9}, {Record: 99999, Limit: 9}})
		if err != nil || events(list) != "  event r 2 t/1\n  event r 3 t/1\n  event q 1 u/3\n" {
			s.Errorf("%v\n%s", err, events(list))
		}
	}},
	{"news tell heads, commands and the epoch, also of no record", func(s *suite) {
		s.Register(consumer("c"))
		p, r, q := s.Process(nil), s.Append("r", some(2)...), s.Append("q", one())
		s.Command(core.Command{Record: q, Kind: core.CommandRetry, Actor: "op"})
		epoch, news, err := p.News(s.Context(), []int64{r, 99999, q})
		slices.SortFunc(news, func(a, b core.News) int { return int(a.Record - b.Record) })
		if err != nil || epoch != s.Rows().Epoch || !slices.Equal(news, []core.News{{Record: r, Head: 2}, {Record: q, Head: 1, Pending: true}}) {
			s.Errorf("%d, %+v, %v", epoch, news, err)
		}
		if epoch, news, err := p.News(s.Context(), nil); err != nil || len(news) != 0 || epoch != s.Rows().Epoch {
			s.Errorf("of none: %d, %+v, %v", epoch, news, err)
		}
	}},
}
