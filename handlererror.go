package keyline

import (
	"fmt"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// unreadableError stands for a handler's error that panics when it is asked what it
// says: a nil pointer that was returned as an error, most often.
type unreadableError struct {
	err  error // nil: not even its chain can be walked
	says string
}

func (e *unreadableError) Error() string { return e.says }

// Unwrap keeps the verdict that the handler has put around it (Permanent, RetryAfter).
func (e *unreadableError) Unwrap() error { return e.err }

// ErrorCode is the stable code of such errors.
func (*unreadableError) ErrorCode() string { return core.CodeUnreadableError }

// readable returns a handler's error as it is where all that will be asked of it can be
// answered, else a failure that says what it is. An error's methods are the handler's code too, but they are called long
// after it has returned, by the record's machine and by the goroutine that ends a run, where a panic is no attempt.
func readable(err error) error {
	if err == nil {
		return nil
	}
	panicked := asked(func() { _ = err.Error(); _ = keylinetype.ErrorCode(err); keylinetype.Judge(err) })
	if panicked == nil {
		return err
	}
	out := &unreadableError{says: fmt.Sprintf("the handler returned a %T that cannot be read: %v", err, panicked)}
	if asked(func() { keylinetype.Judge(err) }) == nil {
		out.err = err
	}
	return out
}

// asked returns what the question panics with, nil where it is answered.
func asked(question func()) (panicked any) {
	defer func() { panicked = recover() }()
	question()
	return nil
}
