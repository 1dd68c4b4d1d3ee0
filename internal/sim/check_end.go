package sim

import (
	"slices"
	"time"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// ended notes what a handler said.
func (c *checker) ended(t *task, out *core.Outcome) {
	w := &t.work
	verdict, delay, _ := keylinetype.Judge(out.Err)
	batch := len(w.Events) > 1
	if out.Cancelled {
		for _, e := range w.Events {
			h := c.history(dkey{pair{w.Record, w.Consumer.ID}, e.Seq})
			h.cancelled = true
			if w.Dead == nil && e.Seq == w.Events[0].Seq {
				h.is(attempt{token: w.Token, attempt: w.Attempt, at: c.twin.Now})
			}
		}
		return
	}
	if w.Dead != nil {
		h := c.history(dkey{pair{w.Record, w.Consumer.ID}, w.Dead.Seq})
		h.cancelled = false
		if verdict >= keylinetype.VerdictRetry && verdict <= keylinetype.VerdictPermanent {
			last := attempt{token: w.Token, attempt: w.Attempt, granted: w.Dead.Granted, charged: true, at: c.twin.Now}
			c.judge(&last, t, verdict, delay)
			h.is(last)
		}
		return
	}
	if verdict == keylinetype.VerdictCompleted {
		c.r.stats.Completed++
		for _, e := range w.Events {
			h := c.history(dkey{pair{w.Record, w.Consumer.ID}, e.Seq})
			h.successes = append(h.successes, success{w.Token, t.begun})
			h.is(attempt{token: w.Token})
			h.cancelled = false
		}
		return
	}
	h := c.history(dkey{pair{w.Record, w.Consumer.ID}, w.Events[0].Seq})
	h.cancelled = false
	last := attempt{token: w.Token, attempt: w.Attempt, granted: w.Checkpoint.Granted, batch: batch, at: c.twin.Now,
		charged: verdict != keylinetype.VerdictSnooze}
	c.judge(&last, t, verdict, delay)
	h.is(last)
}

// is notes the newest run. What a lost claim's handler says late is not it.
func (h *history) is(last attempt) {
	if h.last.token <= last.token {
		h.last = last
	}
}

// judge is the checker's own reading of the retry policy.
func (c *checker) judge(a *attempt, t *task, verdict keylinetype.Verdict, delay time.Duration) {
	w, now := &t.work, c.r.now(t.h.w)
	c.r.stats.Failed++
	defer func() {
		if a.reason != "" || a.terminal {
			h := c.history(dkey{pair{w.Record, w.Consumer.ID}, w.Events[0].Seq})
			h.ends = append(h.ends, *a)
		}
	}()
	delays := w.Consumer.Retry.Delays
	n := a.attempt - a.granted
	advance := w.Consumer.OnDead == keylinetype.Advance || w.Consumer.OnDead == ""
	switch {
	case verdict == keylinetype.VerdictSnooze:
		a.notBefore = now.Add(delay)
	case verdict == keylinetype.VerdictSkip && !a.batch:
		a.terminal = true
	case verdict == keylinetype.VerdictPermanent && !a.batch:
		a.terminal, a.reason = advance, core.DeadPermanent
	case n > len(delays) && !a.batch:
		a.terminal, a.reason = advance, core.DeadExhausted
	case verdict == keylinetype.VerdictRetryAfter:
		a.notBefore = now.Add(delay)
	case n > 0 && n <= len(delays):
		a.notBefore = now.Add(time.Duration(float64(delays[n-1]) * 0.9))
	}
}

// unchanged: what a machine has asked for stays as it was until it is answered;
// the handler reads it without a lock.
func (c *checker) unchanged(t *task) *core.Work {
	w, was := t.given, &t.work
	if !t.h.live() {
		return w // of a claim that is lost: nobody reads it any more
	}
	same := func(a, b core.Event) bool { return a.Seq == b.Seq && a.ID == b.ID }
	if w.Record != was.Record || w.Token != was.Token || w.Consumer != was.Consumer || w.Attempt != was.Attempt ||
		w.Checkpoint != was.Checkpoint || w.Dead != was.Dead || !slices.EqualFunc(w.Events, was.Events, same) {
		fail("record %d consumer %d: the work was changed while it was out", was.Record, was.Consumer.ID)
	}
	return w
}
