package conformance

import (
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/internal/sim"
	"github.com/keylinehq/keyline/keylinetype"
)

// testCase is one promise of the contract.
type testCase struct {
	name string
	run  func(*suite)
}

// Run puts an implementation through every named case.
func Run(t *testing.T, make New) {
	for _, c := range slices.Concat(claimCases, loadCases, flushCases, deadCases, txCases, leaseCases, registryCases) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(&suite{T: t, Installation: make(t)})
		})
	}
}

// suite is a case at work.
type suite struct {
	*testing.T
	Installation
}

// early is how much earlier than in whole hours something is due: when time is
// moved on by hours it has become due, and neither order nor hours change
// where a slow machine takes a few minutes over a test.
const early = 15 * time.Minute

// in is a time so many hours ahead, or a little before that.
func (s *suite) in(hours int) time.Time { return in(s.Now(), hours) }

func in(now time.Time, hours int) time.Time {
	return now.Add(time.Duration(hours)*time.Hour - early).Truncate(time.Microsecond)
}

func one() sim.NewEvent { return sim.NewEvent{Type: "t", Version: 1} }

// some are n events.
func some(n int) []sim.NewEvent {
	list := make([]sim.NewEvent, n)
	for i := range list {
		list[i] = one()
	}
	return list
}

// consumer is one of all events.
func consumer(name string, change ...func(*core.Consumer)) core.Consumer {
	jitter := 0.0
	c := core.Consumer{Name: name, Types: []string{"*"}, OnUnsupported: keylinetype.SkipUnsupported, Start: keylinetype.Now(),
		Effect: keylinetype.Database(), OnDead: keylinetype.Advance, Scope: keylinetype.OneForOne,
		Retry: keylinetype.RetryPolicy{Delays: keylinetype.DefaultRetryDelays(), Jitter: &jitter}}
	for _, f := range change {
		f(&c)
	}
	return c
}

func (s *suite) claims(p Process, q core.ClaimRequest) []core.Claim {
	s.Helper()
	q.Worker, q.Unbounded = p.Worker(), true
	list, err := claims(s.T, p, q)
	if err != nil {
		s.Fatalf("claim: %v", err)
	}
	return list
}

// claims claims; what is named is read in the same call, which must be what
// Load reads, or nothing where there is more than events.
func claims(t *testing.T, p Process, q core.ClaimRequest) ([]core.Claim, error) {
	t.Helper()
	if q.Record == 0 {
		return p.Claim(t.Context(), q)
	}
	const limit = 100
	list, loaded, err := p.ClaimRecord(t.Context(), q, limit)
	if err != nil || len(list) == 0 {
		if len(loaded) > 0 {
			t.Fatalf("nothing is claimed, and yet read: %+v", loaded)
		}
		return list, err
	}
	want, err := p.Load(t.Context(), []core.LoadRequest{{Claim: list[0], Limit: limit}})
	if err == nil && len(loaded) == 0 && len(list) == 1 && len(want) == 1 && len(want[0].Checkpoints)+len(want[0].Commands)+len(want[0].Retries) > 0 {
		return list, nil
	}
	if err != nil || len(list) != 1 || !reflect.DeepEqual(loaded, want) {
		t.Fatalf("claimed %+v and read\n%+v, Load reads\n%+v %v", list, loaded, want, err)
	}
	return list, nil
}

func (s *suite) claim(p Process, record int64) core.Claim {
	s.Helper()
	list := s.claims(p, core.ClaimRequest{Limit: 1, Record: record})
	if len(list) != 1 || list[0].Record != record {
		s.Fatalf("claim of record %d: %+v", record, list)
	}
	return list[0]
}

// hold claims a record and loads it.
func (s *suite) hold(p Process, record int64) core.Loaded {
	s.Helper()
	return s.load(p, s.claim(p, record))
}

func (s *suite) load(p Process, c core.Claim) core.Loaded {
	s.Helper()
	list, err := p.Load(s.Context(), []core.LoadRequest{{Claim: c, Limit: 100}})
	if err != nil || len(list) != 1 {
		s.Fatalf("load of %+v: %+v, %v", c, list, err)
	}
	return list[0]
}

// fenced reports whether a claim is no longer one.
func (s *suite) fenced(p Process, c core.Claim) bool {
	s.Helper()
	list, err := p.Load(s.Context(), []core.LoadRequest{{Claim: c, Limit: 1}})
	if err != nil {
		s.Fatalf("load: %v", err)
	}
	return len(list) == 0
}

// flush applies a flush under the present epoch.
func (s *suite) flush(p Process, f core.Flush) core.FlushResult {
	s.Helper()
	return p.Apply(f, s.Rows().Epoch, false)
}

// flushes applies one that must have this status.
func (s *suite) flushes(p Process, f core.Flush, want core.FlushStatus) core.FlushResult {
	s.Helper()
	res := s.flush(p, f)
	if res.Status != want || res.Record != f.Record || res.Token != f.Token {
		s.Fatalf("flush %+v\nanswer %+v, want status %d", f, res, want)
	}
	return res
}

func (s *suite) row(record int64) sim.RecordRow {
	s.Helper()
	for _, r := range s.Rows().Records {
		if r.ID == record {
			return r
		}
	}
	s.Fatalf("there is no record %d", record)
	return sim.RecordRow{}
}

// mailbox is a record's, which must have one.
func (s *suite) mailbox(record int64) sim.Mailbox {
	s.Helper()
	m := s.row(record).Mailbox
	if m == nil {
		s.Fatalf("record %d has no mailbox", record)
	}
	return *m
}

// position is a consumer's: its row's, or the cursor.
func (s *suite) position(record int64, consumer int32) int64 {
	s.Helper()
	r := s.row(record)
	for _, c := range r.Checkpoints {
		if c.Consumer == consumer {
			return c.Seq
		}
	}
	if r.Mailbox != nil {
		return max(r.Cursor, r.Mailbox.Cursor)
	}
	return r.Cursor
}

// near fails unless a time lies so many hours ahead.
func (s *suite) near(what string, at time.Time, hours int) {
	s.Helper()
	if off := at.Sub(s.Now()).Hours() - float64(hours); math.Abs(off) > 0.5 {
		s.Errorf("%s is %v from now, want %d hours", what, at.Sub(s.Now()), hours)
	}
}

// lost has an observer mark a worker lost: whatever sessions it has are ended, so that it is asked nothing more.
func (s *suite) lost(p, observer Process) {
	s.Helper()
	if marked, err := observer.MarkLost(s.Context(), s.beat(observer, p.Worker())); err != nil || !marked {
		s.Fatalf("mark worker %d lost: %v, %v", p.Worker(), marked, err)
	}
}

func (s *suite) beat(p Process, worker int64) core.Beat {
	s.Helper()
	for _, b := range s.beats(p) {
		if b.Worker == worker {
			return b
		}
	}
	s.Fatalf("worker %d is not live", worker)
	return core.Beat{}
}

func (s *suite) beats(p Process) []core.Beat {
	s.Helper()
	list, err := p.Beats(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	return list
}

// gone reports whether the beats name the process as one that is gone and has claims yet.
func (s *suite) gone(p Process) bool {
	s.Helper()
	for _, b := range s.beats(p) {
		if b.Worker == p.Worker() {
			return b.Gone
		}
	}
	return false
}

func (s *suite) recovers(p Process, want int) {
	s.Helper()
	if n, err := p.Recover(s.Context()); err != nil || n != want {
		s.Fatalf("recovery frees %d, %v; want %d", n, err, want)
	}
}

func settle(l core.Loaded) core.Flush {
	return core.Flush{Record: l.Record, Token: l.Token, Head: l.Head, Cursor: l.Head, Then: core.Settle}
}

func keep(l core.Loaded, rows ...core.Checkpoint) core.Flush {
	return core.Flush{Record: l.Record, Token: l.Token, Head: l.Head, Cursor: l.Base, Upserts: rows}
}

func ready(record int64, consumer int32, seq int64) core.Checkpoint {
	return core.Checkpoint{Record: record, Consumer: consumer, Seq: seq, State: core.Ready}
}
