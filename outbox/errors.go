package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/keylinehq/keyline/keylinetype"
)

// refusal is an error of a class that callers can act on: keyline.ErrInvalid, ErrConflict, ErrNotFound, ErrUnavailable.
type refusal struct {
	message string
	class   error
	cause   error
}

func (e *refusal) Error() string {
	if e.cause != nil {
		return "keyline: outbox: " + e.message + ": " + e.cause.Error()
	}
	return "keyline: outbox: " + e.message
}
func (e *refusal) Is(target error) bool { return target == e.class }
func (e *refusal) Unwrap() error        { return e.cause }

func invalid(format string, args ...any) error {
	return &refusal{message: fmt.Sprintf(format, args...), class: keylinetype.ErrInvalid}
}

func conflict(format string, args ...any) error {
	return &refusal{message: fmt.Sprintf(format, args...), class: keylinetype.ErrConflict}
}

func notFound(format string, args ...any) error {
	return &refusal{message: fmt.Sprintf(format, args...), class: keylinetype.ErrNotFound}
}

func unavailable(cause error, format string, args ...any) error {
	return &refusal{message: fmt.Sprintf(format, args...), class: keylinetype.ErrUnavailable, cause: cause}
}

func sqlState(err error) string {
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		return state.SQLState()
	}
	return ""
}

// busy reports an error that comes from what others do at the moment: a lock that was not got in time, a deadlock, a
// conflict of snapshots. The transaction can be tried again.
func busy(err error) bool {
	switch sqlState(err) {
	case "55P03", "40P01", "40001":
		return true
	}
	return false
}

// failed says during what something failed. A server that is gone, or that ended the session, is unavailable: nothing was changed, or,
// where it was lost during the commit, Status says what holds. Other errors of the server stay what they are.
func failed(during string, err error) error {
	var own *refusal
	if err == nil || errors.As(err, &own) || errors.Is(err, context.Canceled) {
		return err
	}
	switch state := sqlState(err); {
	case state == "", state == "25P03", strings.HasPrefix(state, "08"), strings.HasPrefix(state, "53"), strings.HasPrefix(state, "57"):
		return unavailable(err, "%s", during)
	}
	return fmt.Errorf("keyline: outbox: %s: %w", during, err)
}
