package delivery

import (
	"strings"
	"time"
	"unicode/utf8"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

var zeroTime time.Time

// Decide judges one ended delivery: what it changes for its record and
// consumer. HandleTx writes the result in the handler's own transaction; for every
// other handler the machine carries it to the next flush.
func Decide(now time.Time, random func() float64, c *core.Consumer, w *core.Work, out *core.Outcome) core.Booking {
	j := judgement{now: now, random: random, c: c, w: w, out: out, state: DeliveryProcessing}
	j.cp = core.Checkpoint{Record: w.Record, Consumer: c.ID, Seq: w.Checkpoint.Seq, LiveFrom: w.Checkpoint.LiveFrom, RedeliverTo: w.Checkpoint.RedeliverTo,
		Granted: w.Checkpoint.Granted, Crashes: w.Checkpoint.Crashes, FirstFailedAt: w.Checkpoint.FirstFailedAt, ErrorCode: w.Checkpoint.ErrorCode}
	if w.Dead != nil {
		j.cp.Granted, j.cp.Crashes, j.cp.FirstFailedAt = w.Dead.Granted, w.Dead.Crashes, w.Dead.FirstFailedAt
	}
	last := w.Events[len(w.Events)-1]
	if out.Err != nil && j.cp.RedeliverTo != core.RedeliverUnknown {
		j.cp.RedeliverTo = max(j.cp.RedeliverTo, last.Seq)
	}
	j.b.Counts = core.Counts{Consumer: c.ID, LastEventAt: last.CreatedAt}
	verdict, delay, reason := keylinetype.Judge(out.Err)
	switch {
	case out.Cancelled:
		j.uncharged(core.Ready, zeroTime)
	case verdict == keylinetype.VerdictCompleted:
		j.completed(last.Seq)
	case verdict == keylinetype.VerdictSnooze:
		j.uncharged(core.Backoff, now.Add(delay))
	case verdict == keylinetype.VerdictSkip && len(w.Events) == 1:
		j.skipped(last.Seq, reason)
	default:
		j.failed(verdict, delay)
	}
	return j.finish()
}

// judgement is one Decide at work.
type judgement struct {
	now    time.Time
	random func() float64
	c      *core.Consumer
	w      *core.Work
	out    *core.Outcome
	cp     core.Checkpoint
	b      core.Booking
	status core.DeadRetryStatus
	state  DeliveryState
}

// to moves the delivery's state. A step that the table does not have is a bug
// here, for which the record's supervision is the right place.
func (j *judgement) to(next DeliveryState) {
	if err := j.state.To(next); err != nil {
		panic("delivery: " + err.Error())
	}
	j.state = next
}

// head is the event that attempts and dead letters belong to.
func (j *judgement) head() *core.Event { return &j.w.Events[0] }

func (j *judgement) past(seq int64) {
	j.cp = core.Checkpoint{Record: j.cp.Record, Consumer: j.cp.Consumer, Seq: seq, State: core.Ready, LiveFrom: j.cp.LiveFrom, RedeliverTo: j.cp.RedeliverTo}
	if j.cp.LiveFrom <= seq {
		j.cp.LiveFrom = 0
	}
	if j.cp.RedeliverTo <= seq && j.cp.RedeliverTo != core.RedeliverUnknown {
		j.cp.RedeliverTo = 0
	}
}

func (j *judgement) completed(last int64) {
	j.to(DeliveryCompleted)
	j.b.Counts.Completed = int64(len(j.w.Events))
	j.b.Counts.LastSuccessAt = j.now
	j.status = core.DeadDelivered
	if cp := &j.w.Checkpoint; j.w.Dead == nil && (cp.Granted > 0 || !cp.FirstFailedAt.IsZero()) {
		// It failed before, and may have a dead letter from when it was parked: close it.
		j.b.Dead = &core.DeadUpdate{DeadRetry: core.DeadRetry{Record: j.w.Record, Consumer: j.c.ID, Seq: j.head().Seq,
			Attempt: j.w.Attempt, Granted: j.w.Checkpoint.Granted}, Status: core.DeadDelivered, At: j.now}
	}
	if j.w.Attempt > 1 {
		j.b.Counts.Retried = 1
	}
	j.past(last)
}

// uncharged: the run does not count as an attempt.
func (j *judgement) uncharged(state core.State, due time.Time) {
	if state == core.Backoff {
		j.to(DeliveryRetry)
	} else {
		j.to(DeliveryPending)
	}
	j.status = core.DeadWaiting
	j.cp.State, j.cp.NextAttemptAt, j.cp.Attempt = state, due, j.w.Attempt-1
	j.cp.Granted = min(j.cp.Granted, j.cp.Attempt)
}

func (j *judgement) skipped(seq int64, reason string) {
	j.to(DeliveryIgnored)
	j.b.Counts.Skipped = 1
	j.b.Skip = &core.Skip{Record: j.w.Record, Seq: seq, Consumer: j.c.ID, Attempt: j.w.Attempt, Code: core.SkipHandler, Reason: Sanitize(reason), At: j.now}
	j.status = core.DeadResolved
	j.past(seq)
}

func (j *judgement) failed(verdict keylinetype.Verdict, delay time.Duration) {
	head := j.head()
	code, message := core.CodePanic, Sanitize(j.out.Err.Error())
	if j.out.Stack == "" {
		code = Sanitize(keylinetype.ErrorCode(j.out.Err))
	}
	j.b.Failure = &core.Failure{Record: j.w.Record, Seq: head.Seq, Consumer: j.c.ID, Attempt: j.w.Attempt, At: j.now,
		Code: code, Message: message, Stack: Sanitize(j.out.Stack)}
	j.b.Counts.Failed, j.b.Counts.LastFailureAt = 1, j.now
	j.cp.Attempt, j.cp.ErrorCode = j.w.Attempt, code
	if j.cp.FirstFailedAt.IsZero() {
		j.cp.FirstFailedAt = j.now
	}
	delays := j.c.Retry.Delays
	run := max(j.w.Attempt-j.cp.Granted, 1) // 1 for the first run of this budget
	batch := len(j.w.Events) > 1
	switch {
	case verdict == keylinetype.VerdictPermanent && !batch:
		reason := core.DeadPermanent
		if code == string(core.DeadInvalid) {
			reason = core.DeadInvalid
		}
		j.dead(reason, code, message)
	case run > len(delays) && !batch:
		j.dead(core.DeadExhausted, code, message)
	case verdict == keylinetype.VerdictRetryAfter:
		j.backoff(delay)
	case run > len(delays):
		// A batch that failed says nothing yet of its first event: alone, now.
		j.cp.Granted = j.cp.Attempt
		j.backoff(0)
	default:
		j.backoff(j.jittered(delays[run-1]))
	}
}

func (j *judgement) jittered(d time.Duration) time.Duration {
	share := keylinetype.DefaultJitter
	if j.c.Retry.Jitter != nil {
		share = *j.c.Retry.Jitter
	}
	return time.Duration(float64(d) * (1 + share*(2*j.random()-1)))
}

func (j *judgement) backoff(d time.Duration) {
	j.to(DeliveryRetry)
	j.status = core.DeadWaiting
	j.cp.State, j.cp.NextAttemptAt = core.Backoff, j.now.Add(max(d, 0))
}

func (j *judgement) dead(reason core.DeadReason, code, message string) {
	head := j.head()
	j.status = core.DeadAgain
	j.b.Counts.Dead = 1
	if j.w.Dead != nil {
		j.to(DeliveryDead)
		j.b.Dead = &core.DeadUpdate{Reason: reason, Code: code, Message: message}
		return
	}
	j.b.DeadLetter = &core.DeadLetter{Record: j.w.Record, Seq: head.Seq, Consumer: j.c.ID, Attempt: j.w.Attempt, EventID: head.ID,
		Reason: reason, Code: code, Message: message, FirstFailedAt: j.cp.FirstFailedAt, FailedAt: j.now}
	if j.c.OnDead == keylinetype.Park {
		j.to(DeliveryParked)
		j.cp.State = core.Parked
		return
	}
	j.to(DeliveryDead)
	j.past(head.Seq)
}

// finish turns the judgement of a dead letter's retry into its update; the checkpoint is then unchanged.
func (j *judgement) finish() core.Booking {
	if j.w.Dead == nil {
		j.b.Checkpoint = j.cp
		return j.b
	}
	u := core.DeadUpdate{}
	if j.b.Dead != nil {
		u = *j.b.Dead
	}
	u.DeadRetry = *j.w.Dead
	u.Status, u.At, u.Started = j.status, j.now, false
	u.Attempt = j.w.Attempt
	if j.status == core.DeadWaiting {
		u.Attempt, u.DueAt = j.cp.Attempt, later(j.cp.NextAttemptAt, j.now)
		u.FirstFailedAt, u.ErrorCode = j.cp.FirstFailedAt, j.cp.ErrorCode
	}
	u.Granted, u.Crashes = min(j.cp.Granted, u.Attempt), j.cp.Crashes
	if j.status == core.DeadDelivered || j.status == core.DeadResolved {
		u.Granted = min(j.w.Dead.Granted, u.Attempt)
	}
	j.b.Dead, j.b.Checkpoint = &u, j.w.Checkpoint
	return j.b
}

// unsupportedBooking makes a dead letter of an event whose version is not supported, without a run.
func unsupportedBooking(now time.Time, w *core.Work) core.Booking {
	j := judgement{now: now, c: w.Consumer, w: w, cp: w.Checkpoint, state: DeliveryPending}
	j.cp.FirstFailedAt, j.cp.NextAttemptAt = now, zeroTime // it may have been in backoff when its version was still supported
	j.cp.ErrorCode = core.CodeUnsupportedDead              // not CodeUnsupportedVersion: afterLoad would unpark it
	j.dead(core.DeadUnsupported, core.CodeUnsupportedVersion, "the consumer does not support this version")
	j.b.Counts = core.Counts{Consumer: w.Consumer.ID, Dead: 1, LastEventAt: w.Events[0].CreatedAt}
	return j.finish()
}

// maxText bounds a text that is kept about a failure, in bytes.
const maxText = 2048

// Sanitize makes a text storable: valid UTF-8 without NUL, at most 2 KiB.
func Sanitize(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	s = strings.ReplaceAll(s, "\x00", "\uFFFD")
	if len(s) <= maxText {
		return s
	}
	s = s[:maxText]
	for !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return s
}
