package keylinetype

import (
	"errors"
	"fmt"
	"time"
)

// The classes of errors, by what the caller may do.
var (
	// ErrConflict: the record moved on, an idempotency key was used for
	// something else, or the database could not order this transaction beside
	// another one. Run the transaction again from its start, and decide anew.
	ErrConflict = errors.New("keyline: conflict")
	// ErrInvalid: the input can never be accepted. Do not retry.
	ErrInvalid = errors.New("keyline: invalid")
	// ErrFenced: the claim was lost; nothing this holder says counts.
	ErrFenced = errors.New("keyline: fenced")
	// ErrUnavailable: the database could not be reached, or does not serve now. Retry.
	ErrUnavailable = errors.New("keyline: unavailable")
	// ErrNotFound: there is no such thing.
	ErrNotFound = errors.New("keyline: not found")
)

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// Permanent marks an error that a retry cannot mend: the delivery becomes a
// dead letter at once. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

// maxDelay keeps what a handler asks for within what a due time can hold, with room, as the delays of a retry policy are.
const maxDelay = 10 * 365 * 24 * time.Hour

func bounded(delay time.Duration) time.Duration { return min(max(delay, 0), maxDelay) }

type retryAfterError struct {
	err   error
	delay time.Duration
}

func (e *retryAfterError) Error() string { return e.err.Error() }
func (e *retryAfterError) Unwrap() error { return e.err }

// RetryAfter marks an error with the pause before the next run, in place of the
// retry policy's. The run is charged as an attempt. RetryAfter(nil, d) is nil. A
// delay of more than ten years (3650 days) is one of ten.
func RetryAfter(err error, delay time.Duration) error {
	if err == nil {
		return nil
	}
	return &retryAfterError{err, bounded(delay)}
}

type snoozeError struct{ delay time.Duration }

func (e *snoozeError) Error() string { return fmt.Sprintf("snoozed for %s", e.delay) }

// Snooze asks to be called again after delay, without charging an attempt, and so without end: with a delay
// of 0 that is a loop as fast as the database writes. One of more than ten years (3650 days) is one of ten.
func Snooze(delay time.Duration) error { return &snoozeError{bounded(delay)} }

type skipError struct{ reason string }

func (e *skipError) Error() string { return "skipped: " + e.reason }

// Skip ends the delivery without success and without a dead letter; reason is
// kept in the skips table.
func Skip(reason string) error { return &skipError{reason} }

// Verdict is what a handler's error means for its delivery.
type Verdict int

// The verdicts.
const (
	VerdictCompleted  Verdict = iota // nil
	VerdictRetry                     // an error: charged, backoff by policy
	VerdictRetryAfter                // charged, backoff by Delay
	VerdictPermanent                 // dead letter at once
	VerdictSnooze                    // not charged, again after Delay
	VerdictSkip                      // recorded, terminal
)

// Judge reads a handler's error. delay is meaningful for VerdictRetryAfter and
// VerdictSnooze, reason for VerdictSkip.
func Judge(err error) (v Verdict, delay time.Duration, reason string) {
	if err == nil { // the usual case, without the allocations of the others
		return VerdictCompleted, 0, ""
	}
	var (
		permanent *permanentError
		after     *retryAfterError
		snooze    *snoozeError
		skip      *skipError
	)
	switch {
	case errors.As(err, &snooze):
		return VerdictSnooze, snooze.delay, ""
	case errors.As(err, &skip):
		return VerdictSkip, 0, skip.reason
	case errors.As(err, &permanent):
		return VerdictPermanent, 0, ""
	case errors.As(err, &after):
		return VerdictRetryAfter, after.delay, ""
	}
	return VerdictRetry, 0, ""
}

// ErrorCode returns the stable code of an error for failures and dead letters:
// the first in its chain that has `ErrorCode() string`, else its SQLSTATE as
// "sqlstate_XXXXX", else "error".
func ErrorCode(err error) string {
	var coded interface{ ErrorCode() string }
	if errors.As(err, &coded) {
		return coded.ErrorCode()
	}
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		return "sqlstate_" + state.SQLState()
	}
	return "error"
}
