package conformance

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/internal/sim"
)

// plan is a flush before it is made for a side: times are hours from now, and
// dead letters are meant by their delivery.
type plan struct {
	core.Flush
	due, wantsDue int
	updates       []plannedUpdate
}

type plannedUpdate struct {
	core.DeadUpdate
	byID bool
	due  int
}

// made is the plan as a side's flush.
func (p *plan) made(s *side, key string) core.Flush {
	now, record := s.Now(), s.row(key).ID
	f := p.Flush
	f.Upserts = append([]core.Checkpoint(nil), p.Upserts...)
	for i := range f.Upserts {
		x := &f.Upserts[i]
		x.Record = record
		if x.State == core.Backoff {
			x.NextAttemptAt = in(now, x.Attempt)
		}
		if x.Attempt > 1 {
			x.FirstFailedAt = in(now, -x.Attempt)
		}
	}
	f.DeadLetters = append([]core.DeadLetter(nil), p.DeadLetters...)
	for i := range f.DeadLetters {
		x := &f.DeadLetters[i]
		x.Record, x.FirstFailedAt, x.FailedAt = record, in(now, -3), in(now, -1)
	}
	f.DeadUpdates = nil
	for _, u := range p.updates {
		x := u.DeadUpdate
		x.Record, x.At = record, in(now, 0)
		if u.byID {
			x.ID = s.dead(key, x.Seq, x.Consumer)
		}
		if x.Status == core.DeadWaiting {
			x.DueAt = in(now, u.due)
		}
		f.DeadUpdates = append(f.DeadUpdates, x)
	}
	f.Failures = append([]core.Failure(nil), p.Failures...)
	for i := range f.Failures {
		f.Failures[i].Record, f.Failures[i].At = record, in(now, 0)
	}
	f.Skips = append([]core.Skip(nil), p.Skips...)
	for i := range f.Skips {
		f.Skips[i].Record, f.Skips[i].At = record, in(now, 0)
	}
	if p.due > -9 {
		f.DueAt = in(now, p.due)
	}
	if len(f.Wants) > 0 {
		f.WantsDueAt = in(now, p.wantsDue)
	}
	return f
}

// row draws a consumer's row.
func (c *comparison) row(consumer int32, head int64) core.Checkpoint {
	k := core.Checkpoint{Consumer: consumer, Seq: int64(c.ch.IntN(int(head) + 1)), State: core.Ready}
	if c.oneIn(2) {
		return k
	}
	k.Attempt = 1 + c.ch.IntN(3)
	k.Granted, k.Crashes = c.ch.IntN(k.Attempt), c.ch.IntN(2)
	k.State = pick(c, []core.State{core.Ready, core.Backoff, core.Parked, core.Started})
	k.ErrorCode = c.text()
	k.RedeliverTo = pick(c, []int64{0, core.RedeliverUnknown, k.Seq + 1, head})
	return k
}

// text is one that can be written, or cannot.
func (c *comparison) text() string {
	return pick(c, []string{"", "boom", "boom", "bang", "bang", "größer", "a\x00b", "a\xff"}[:5+c.ch.IntN(2)*c.ch.IntN(4)])
}

func (c *comparison) plan(r *sim.RecordRow) *plan {
	p := &plan{due: -10, wantsDue: c.ch.IntN(4) - 1}
	p.Head = r.Head
	if c.oneIn(8) {
		p.Head--
	}
	p.Cursor = int64(c.ch.IntN(int(r.Head) + 1))
	p.Then = pick(c, []core.Disposition{core.Keep, core.Keep, core.Settle, core.HandBack, core.HandBack, core.Release})
	if c.oneIn(2) {
		p.due = c.ch.IntN(5) - 1
	}
	if p.Then == core.HandBack && c.oneIn(2) {
		p.Wants = c.some()
	}
	if p.Then == core.Release && len(c.open) > 0 {
		p.due = -10 // later, time would have to be moved on
	}
	p.Clear = c.oneIn(4)
	for _, row := range c.rows.Consumers {
		switch c.ch.IntN(5) {
		case 0, 1:
			p.Upserts = append(p.Upserts, c.row(row.ID, r.Head))
		case 2:
			p.Deletes = append(p.Deletes, row.ID)
		}
		if c.oneIn(6) {
			c.extras(p, r, row.ID)
		}
	}
	for _, d := range r.DeadLetters {
		if c.oneIn(3) {
			c.update(p, d, true)
		}
	}
	for _, cmd := range r.Commands {
		if !c.oneIn(3) {
			p.Applied = append(p.Applied, core.AppliedCommand{ID: cmd.ID, Done: c.oneIn(2), Detail: c.text()})
		}
	}
	return p
}

func (c *comparison) extras(p *plan, r *sim.RecordRow, consumer int32) {
	seq, attempt := int64(1+c.ch.IntN(int(r.Head))), 1+c.ch.IntN(3)
	switch c.ch.IntN(4) {
	case 0:
		p.DeadLetters = append(p.DeadLetters, core.DeadLetter{Seq: seq, Consumer: consumer, Attempt: attempt, EventID: uuid.Max,
			Reason: pick(c, []core.DeadReason{core.DeadExhausted, core.DeadPermanent}), Code: "code", Message: c.text()})
	case 1:
		p.Failures = append(p.Failures, core.Failure{Seq: seq, Consumer: consumer, Attempt: attempt, Code: "failed", Message: c.text()})
	case 2:
		p.Skips = append(p.Skips, core.Skip{Seq: seq, Consumer: consumer, Attempt: attempt, Code: "handler", Reason: c.text()})
	case 3:
		for _, d := range r.DeadLetters {
			if d.Seq == seq && d.Consumer == consumer {
				return // it may get an update by its id
			}
		}
		c.update(p, sim.DeadRow{DeadRetry: core.DeadRetry{Seq: seq, Consumer: consumer}}, false)
	}
}

func (c *comparison) update(p *plan, d sim.DeadRow, byID bool) {
	u := plannedUpdate{byID: byID, due: c.ch.IntN(3)}
	u.Seq, u.Consumer, u.Attempt = d.Seq, d.Consumer, d.Attempt+c.ch.IntN(2)
	u.Granted, u.Crashes = c.ch.IntN(u.Attempt+1), c.ch.IntN(2)
	u.Status = pick(c, []core.DeadRetryStatus{core.DeadWaiting, core.DeadDelivered, core.DeadAgain, core.DeadResolved})
	u.Started = u.Status == core.DeadWaiting && c.oneIn(3)
	if u.Status == core.DeadAgain {
		u.Reason, u.Code, u.Message = core.DeadPermanent, "again", c.text()
	}
	p.updates = append(p.updates, u)
}

func drawFlush(c *comparison) (string, func(*side) string) {
	r := c.record(c.isHeld)
	if r == nil {
		return "", nil
	}
	key, p := r.Key, c.plan(r)
	what, of := c.which(key)
	epoch := c.rows.Epoch
	if c.oneIn(12) {
		epoch--
	}
	lost := c.oneIn(6)
	what = fmt.Sprintf("%s %s epoch %d lost %v due %d wants due %d updates %+v %+v", key, what, epoch, lost, p.due, p.wantsDue, p.updates, p.Flush)
	return what, func(s *side) string {
		answer := s.as(of(s), p.made(s, key), epoch, lost)
		if p.Then == core.Release && p.due > 0 {
			s.Advance(time.Hour) // it is due within a second, which is not to be waited for
		}
		return answer
	}
}

// drawTransaction is a HandleTx of any consumer, or of a dead letter's retry.
func drawTransaction(c *comparison) (string, func(*side) string) {
	r := c.record(c.isHeld)
	if r == nil || len(c.rows.Consumers) == 0 {
		return "", nil
	}
	key, consumer := r.Key, pick(c, c.rows.Consumers).ID
	fence := int64(c.ch.IntN(int(r.Head) + 1))
	for _, k := range r.Checkpoints {
		if k.Consumer == consumer && !c.oneIn(4) {
			fence = k.Seq
		}
	}
	done, failed := ready(0, consumer, min(fence+1, r.Head)), c.row(consumer, r.Head)
	failed.Seq, failed.ErrorCode = fence, "boom"
	fails, before := c.oneIn(3), c.oneIn(6)
	var dead *sim.DeadRow
	if len(r.DeadLetters) > 0 && c.oneIn(2) {
		d := pick(c, r.DeadLetters)
		if c.oneIn(5) {
			d.Attempt++
		}
		dead = &d
	}
	what, of := c.which(key)
	what = fmt.Sprintf("%s %s c%d fence %d fails %v leaves before %v dead %+v", key, what, consumer, fence, fails, before, dead)
	return what, func(s *side) string {
		h, now := of(s), s.Now()
		w := &core.Work{Record: h.Record, Token: h.Token, Consumer: &core.Consumer{ID: consumer}, Fence: fence}
		if dead != nil {
			d := dead.DeadRetry
			d.ID, d.Record = s.dead(key, d.Seq, d.Consumer), h.Record
			w.Dead = &d
		}
		p := s.processes[h.process]
		is := p.Worker()
		p.Become(h.worker)
		out := p.Transact(w, func() error {
			if before && is == h.worker {
				_ = p.Leave(s.Context(), h.worker)
				if n, err := s.processes[(h.process+1)%compared].Recover(s.Context()); err != nil || n == 0 {
					s.Errorf("recovery beside a transaction frees %d, %v", n, err)
				}
			}
			if fails {
				return errors.New("failed")
			}
			return nil
		}, func(err error) core.Booking { return booked(w, err, done, failed, now) })
		p.Become(is)
		if before && is == h.worker {
			return transacted(out) + ", " + s.leaves(h.process, false)
		}
		return transacted(out)
	}
}

func booked(w *core.Work, err error, done, failed core.Checkpoint, now time.Time) core.Booking {
	b := core.Booking{Checkpoint: done}
	if err != nil {
		b.Checkpoint = failed
		b.Failure = &core.Failure{Record: w.Record, Seq: failed.Seq + 1, Consumer: w.Consumer.ID, Attempt: failed.Attempt + 1, At: in(now, 0), Code: "tx"}
		if b.Checkpoint.State == core.Backoff {
			b.Checkpoint.NextAttemptAt = in(now, 2)
		}
	}
	b.Checkpoint.Record = w.Record
	if w.Dead != nil {
		u := core.DeadUpdate{DeadRetry: *w.Dead, Status: core.DeadDelivered, At: in(now, 0)}
		u.Attempt++
		u.Started = false
		if err != nil {
			u.Status, u.DueAt = core.DeadWaiting, in(now, 1)
		}
		b.Dead = &u
	}
	return b
}

func transacted(o core.Outcome) string {
	return fmt.Sprintf("booked %v fenced %v failed %v", o.Booked != nil, o.Fenced, o.Err != nil)
}
