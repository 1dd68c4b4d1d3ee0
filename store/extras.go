package store

import (
	"time"

	"github.com/google/uuid"

	"github.com/keylinehq/keyline/internal/core"
)

// extras are the rare parts of a flush, as the JSON argument of flush_extras.
type extras struct {
	DeadLetters []deadLetter `json:"dead_letters,omitempty"`
	DeadUpdates []deadUpdate `json:"dead_updates,omitempty"`
	Failures    []failure    `json:"failures,omitempty"`
	Skips       []skip       `json:"skips,omitempty"`
	Applied     []applied    `json:"applied,omitempty"`
}

type deadLetter struct {
	Record   int64     `json:"record"`
	Seq      int64     `json:"seq"`
	Consumer int32     `json:"consumer"`
	Event    uuid.UUID `json:"event"`
	Attempt  int       `json:"attempt"`
	Reason   string    `json:"reason"`
	Code     string    `json:"code"`
	Message  string    `json:"message"`
	First    time.Time `json:"first"`
	At       time.Time `json:"at"`
}

type deadUpdate struct {
	ID       int64      `json:"id"`
	Record   int64      `json:"record"`
	Seq      int64      `json:"seq"`
	Consumer int32      `json:"consumer"`
	Status   string     `json:"status"`
	Attempt  int        `json:"attempt"`
	Granted  int        `json:"granted"`
	Crashes  int        `json:"crashes"`
	Started  bool       `json:"started"`
	Due      *time.Time `json:"due"`
	Reason   *string    `json:"reason"`
	Code     *string    `json:"code"`
	Message  *string    `json:"message"`
	Actor    string     `json:"actor"`
	Note     string     `json:"note"`
	At       time.Time  `json:"at"`
}

type failure struct {
	Record   int64     `json:"record"`
	Seq      int64     `json:"seq"`
	Consumer int32     `json:"consumer"`
	Attempt  int       `json:"attempt"`
	At       time.Time `json:"at"`
	Code     string    `json:"code"`
	Message  string    `json:"message"`
	Stack    *string   `json:"stack"`
}

type skip struct {
	Record   int64     `json:"record"`
	Seq      int64     `json:"seq"`
	Consumer int32     `json:"consumer"`
	Attempt  int       `json:"attempt"`
	Code     string    `json:"code"`
	Reason   string    `json:"reason"`
	At       time.Time `json:"at"`
}

type applied struct {
	ID     int64  `json:"id"`
	Record int64  `json:"record"`
	Done   bool   `json:"done"`
	Detail string `json:"detail"`
}

func (e *extras) empty() bool {
	return len(e.DeadLetters)+len(e.DeadUpdates)+len(e.Failures)+len(e.Skips)+len(e.Applied) == 0
}

func (e *extras) add(f *core.Flush) {
	for i := range f.DeadLetters {
		e.deadLetter(&f.DeadLetters[i])
	}
	for i := range f.DeadUpdates {
		e.deadUpdate(&f.DeadUpdates[i])
	}
	for i := range f.Failures {
		e.failure(&f.Failures[i])
	}
	for i := range f.Skips {
		e.skip(&f.Skips[i])
	}
	for _, c := range f.Applied {
		e.Applied = append(e.Applied, applied{c.ID, f.Record, c.Done, c.Detail})
	}
}

func (e *extras) booking(b *core.Booking) {
	if b.DeadLetter != nil {
		e.deadLetter(b.DeadLetter)
	}
	if b.Dead != nil {
		e.deadUpdate(b.Dead)
	}
	if b.Failure != nil {
		e.failure(b.Failure)
	}
	if b.Skip != nil {
		e.skip(b.Skip)
	}
}

func (e *extras) deadLetter(d *core.DeadLetter) {
	e.DeadLetters = append(e.DeadLetters, deadLetter{d.Record, d.Seq, d.Consumer, d.EventID, d.Attempt,
		string(d.Reason), d.Code, d.Message, d.FirstFailedAt, d.FailedAt})
}

func (e *extras) deadUpdate(d *core.DeadUpdate) {
	e.DeadUpdates = append(e.DeadUpdates, deadUpdate{d.ID, d.Record, d.Seq, d.Consumer, string(d.Status), d.Attempt, d.Granted, d.Crashes, d.Started,
		optional(d.DueAt), unlessEmpty(string(d.Reason)), unlessEmpty(d.Code), unlessEmpty(d.Message), d.Actor, d.Note, d.At})
}

func (e *extras) failure(f *core.Failure) {
	e.Failures = append(e.Failures, failure{f.Record, f.Seq, f.Consumer, f.Attempt, f.At, f.Code, f.Message, unlessEmpty(f.Stack)})
}

func (e *extras) skip(s *core.Skip) {
	e.Skips = append(e.Skips, skip{s.Record, s.Seq, s.Consumer, s.Attempt, s.Code, s.Reason, s.At})
}
