package crm

import (
	"errors"
	"fmt"
	"strings"

	"github.com/keylinehq/keyline"
)

// What the service refuses. Nothing has been written then.
var (
	// ErrNotFound: the organization has no such activity.
	ErrNotFound = errors.New("no such activity")
	// ErrTransition: the activity is in a state in which this cannot be done.
	ErrTransition = errors.New("not possible in the activity's present state")
	// ErrStale: the activity has another version than the caller has seen.
	ErrStale = errors.New("the activity has changed since")
	// ErrKeyReused: the idempotency key came with another request before.
	ErrKeyReused = errors.New("the idempotency key was used for another request")
	// ErrUnavailable: the database could not be reached or does not serve now, or
	// could not order this beside something else. It may have been done all the
	// same if the connection broke at the end: ask again with an idempotency key.
	ErrUnavailable = errors.New("not available now")
)

// InvalidError says which part of the input can never be accepted.
type InvalidError struct {
	Field   string
	Message string
}

// Error implements error.
func (e *InvalidError) Error() string { return e.Field + " " + e.Message }

func invalid(field, format string, args ...any) error {
	return &InvalidError{Field: field, Message: fmt.Sprintf(format, args...)}
}

// classify adds ErrUnavailable where it is meant. What has no SQLSTATE did not
// come from the server, so that it is about reaching it.
func classify(err error) error {
	for _, own := range []error{ErrNotFound, ErrTransition, ErrStale, ErrKeyReused, errKeyInFlight, keyline.ErrInvalid} {
		if errors.Is(err, own) {
			return err
		}
	}
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		switch code := state.SQLState(); {
		case strings.HasPrefix(code, "08"), strings.HasPrefix(code, "40"), strings.HasPrefix(code, "53"), strings.HasPrefix(code, "57"):
		default:
			return err
		}
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}
