package delivery

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

func work(c *core.Consumer, attempt int) core.Work {
	return core.Work{Record: 1, Token: 7, Consumer: c, Events: events(1, 1), Attempt: attempt,
		Checkpoint: core.Checkpoint{Record: 1, Consumer: c.ID, State: core.Ready, Attempt: attempt - 1}}
}

func TestDefaultRetryIsFourRunsWithJitter(t *testing.T) {
	jitter := keylinetype.DefaultJitter
	c := consumer(1, func(c *core.Consumer) { c.Retry.Jitter = &jitter })
	for attempt, mean := range map[int]time.Duration{1: time.Minute, 2: 5 * time.Minute, 3: 30 * time.Minute} {
		for random, share := range map[float64]float64{0: 0.9, 0.5: 1, 0.999999999: 1.1} {
			w := work(c, attempt)
			b := Decide(begin, func() float64 { return random }, c, &w, &core.Outcome{Err: errHandler})
			delay := b.Checkpoint.NextAttemptAt.Sub(begin)
			if want := time.Duration(float64(mean) * share); (delay - want).Abs() > time.Millisecond {
				t.Errorf("after run %d: %s, want %s", attempt, delay, want)
			}
			if b.Checkpoint.State != core.Backoff || b.Checkpoint.Attempt != attempt || b.DeadLetter != nil || b.Failure == nil {
				t.Errorf("run %d: %+v", attempt, b)
			}
		}
	}
	w := work(c, 4)
	b := Decide(begin, func() float64 { return 0.5 }, c, &w, &core.Outcome{Err: errHandler})
	if b.DeadLetter == nil || b.DeadLetter.Reason != core.DeadExhausted || b.DeadLetter.Attempt != 4 || b.Checkpoint.Seq != 1 {
		t.Errorf("the fourth failure: %+v", b)
	}
}

func TestErrorsDecideByTheirClass(t *testing.T) {
	c := consumer(1)
	for name, tc := range map[string]struct {
		out     core.Outcome
		state   core.State
		seq     int64
		attempt int
		due     time.Duration
		dead    core.DeadReason
		skipped bool
		failed  bool
	}{
		"nil":         {state: core.Ready, seq: 1},
		"error":       {out: core.Outcome{Err: errHandler}, state: core.Backoff, attempt: 2, due: 5 * time.Minute, failed: true},
		"wrapped":     {out: core.Outcome{Err: errors.Join(errHandler, keylinetype.Permanent(errHandler))}, state: core.Ready, seq: 1, dead: core.DeadPermanent, failed: true},
		"permanent":   {out: core.Outcome{Err: keylinetype.Permanent(errHandler)}, state: core.Ready, seq: 1, dead: core.DeadPermanent, failed: true},
		"retry after": {out: core.Outcome{Err: keylinetype.RetryAfter(errHandler, 7*time.Second)}, state: core.Backoff, attempt: 2, due: 7 * time.Second, failed: true},
		"snooze":      {out: core.Outcome{Err: keylinetype.Snooze(3 * time.Second)}, state: core.Backoff, attempt: 1, due: 3 * time.Second},
		"skip":        {out: core.Outcome{Err: keylinetype.Skip("why")}, state: core.Ready, seq: 1, skipped: true},
		"panic":       {out: core.Outcome{Err: errHandler, Stack: "goroutine 1"}, state: core.Backoff, attempt: 2, due: 5 * time.Minute, failed: true},
		"cancelled":   {out: core.Outcome{Err: context.Canceled, Cancelled: true}, state: core.Ready, attempt: 1},
	} {
		w := work(c, 2)
		b := Decide(begin, func() float64 { return 0.5 }, c, &w, &tc.out)
		due := time.Duration(0)
		if !b.Checkpoint.NextAttemptAt.IsZero() {
			due = b.Checkpoint.NextAttemptAt.Sub(begin)
		}
		if b.Checkpoint.State != tc.state || b.Checkpoint.Seq != tc.seq || b.Checkpoint.Attempt != tc.attempt || due != tc.due {
			t.Errorf("%s: checkpoint %+v", name, b.Checkpoint)
		}
		if (b.DeadLetter != nil) != (tc.dead != "") || b.DeadLetter != nil && b.DeadLetter.Reason != tc.dead {
			t.Errorf("%s: dead letter %+v", name, b.DeadLetter)
		}
		if (b.Skip != nil) != tc.skipped || (b.Failure != nil) != tc.failed {
			t.Errorf("%s: skip %+v, failure %+v", name, b.Skip, b.Failure)
		}
		if tc.out.Stack != "" && (b.Failure.Code != core.CodePanic || b.Failure.Stack == "") {
			t.Errorf("%s: failure %+v", name, b.Failure)
		}
	}
}

func TestTextsAreMadeStorable(t *testing.T) {
	for _, s := range []string{"", "plain", "nul \x00 in it", "broken \xff\xfe utf-8", strings.Repeat("é", maxText), strings.Repeat("\xff", 2*maxText)} {
		got := Sanitize(s)
		if !utf8.ValidString(got) || strings.ContainsRune(got, 0) || len(got) > maxText {
			t.Errorf("%.20q becomes %.20q, %d bytes", s, got, len(got))
		}
	}
}

// An operator has granted new runs after two failures. A run that does not count (a snooze, a withdrawal) leaves that
// grant as it is: the next failure is the first of the new budget, not the third of all.
func TestARunThatDoesNotCountKeepsWhatWasGranted(t *testing.T) {
	c := consumer(1, func(c *core.Consumer) { c.Retry.Delays = []time.Duration{time.Minute, time.Hour} })
	for name, out := range map[string]core.Outcome{
		"snoozed": {Err: keylinetype.Snooze(time.Second)}, "cancelled": {Err: errHandler, Cancelled: true},
	} {
		w := work(c, 3)
		w.Checkpoint.Granted = 2
		cp := Decide(begin, half, c, &w, &out).Checkpoint
		if cp.Attempt != 2 || cp.Granted != 2 {
			t.Errorf("%s: attempt %d, granted %d; want 2, 2", name, cp.Attempt, cp.Granted)
		}
		w = work(c, 3)
		w.Checkpoint = cp
		b := Decide(begin, half, c, &w, &core.Outcome{Err: errHandler})
		if due := b.Checkpoint.NextAttemptAt.Sub(begin); b.DeadLetter != nil || due != time.Minute {
			t.Errorf("%s, then failed: due in %s, dead letter %v; want the first delay", name, due, b.DeadLetter)
		}
	}
}

func half() float64 { return 0.5 }
