package keyline

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/keylinetype"
)

// The classes of errors, by what the caller may do. Test with errors.Is.
var (
	// ErrConflict: the record moved on, an idempotency key was used for
	// something else, or the database could not order this transaction beside
	// another one. Run the transaction again from its start, and decide anew.
	ErrConflict = keylinetype.ErrConflict
	// ErrInvalid: the input can never be accepted. Do not retry.
	ErrInvalid = keylinetype.ErrInvalid
	// ErrFenced: the claim was lost; nothing this holder says counts.
	ErrFenced = keylinetype.ErrFenced
	// ErrUnavailable: the database could not be reached, or does not serve now. Retry.
	ErrUnavailable = keylinetype.ErrUnavailable
	// ErrNotFound: there is no such thing.
	ErrNotFound = keylinetype.ErrNotFound
)

// The codes of an Error. A code is stable; a message is for people.
const (
	CodeWrongExpectedSeq    = "wrong_expected_seq"
	CodeIdempotencyConflict = "idempotency_conflict" // or an event's id that exists already
	CodeInvalidArgument     = "invalid_argument"
	CodeInvalidPayload      = "invalid_payload"
	CodeIncompatiblePayload = "incompatible_payload" // not what its schema or its consumer's type says
	CodeUnknownEventType    = "unknown_event_type"
	CodePayloadTooLarge     = "payload_too_large"
	CodeTenantMismatch      = "tenant_mismatch"
	CodeInProcessType       = "in_process_type"
	CodeNotFound            = "not_found"
	CodeAppendOnly          = "append_only"
	CodeWorkerNotLive       = "worker_not_live"
	CodeTooComplex          = "too_complex"
	CodeConstraint          = "constraint"
	CodeSerialization       = "serialization_failure"
	CodeDeadlock            = "deadlock"
	CodeLockTimeout         = "lock_timeout"
	CodeCancelled           = "cancelled"
	CodeNotInstalled        = "not_installed"
	CodePermissionDenied    = "permission_denied"
	CodeTransactionAborted  = "transaction_aborted"
	CodeTransactionClosed   = "transaction_closed"
	CodeUnavailable         = "unavailable"
	CodeDatabase            = "database" // an SQLSTATE without a code of its own
)

// Error is what the methods of Client and Operator return, and what constructors say of
// a field that is wrong. Its class is read with
// errors.Is(err, ErrConflict) and so on; the driver's error stays in the chain.
//
// After an error that came from the database (its chain has an SQLSTATE) the
// transaction is aborted as by any failed statement, and goes on from a
// savepoint; errors found before that have sent nothing.
type Error struct {
	// Code is stable; one of the Code constants.
	Code string
	// Message says what is wrong. It holds no payload.
	Message string
	// Field is the field that is wrong, e.g. "Payload", "events[3].Type",
	// "Config.Lease" or, of the consumer "timeline", "timeline.Effect"; "" where it is not known.
	Field string

	op    string // what was being done
	class error  // nil: none of the classes
	cause error
}

// Error implements error.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("keyline: ")
	if e.op != "" {
		b.WriteString(e.op + ": ")
	}
	if e.Field != "" {
		b.WriteString(e.Field + ": ")
	}
	b.WriteString(e.Message)
	return b.String()
}

// Is makes errors.Is match the class, and an *Error with the same Code.
func (e *Error) Is(target error) bool {
	if other, ok := target.(*Error); ok {
		return other.Code == e.Code && other.Field == "" && other.Message == ""
	}
	return e.class != nil && target == e.class
}

// Unwrap returns the driver's error, or whatever else the cause was.
func (e *Error) Unwrap() error { return e.cause }

// ErrorCode returns Code: failures and dead letters keep it where a handler
// returns this error.
func (e *Error) ErrorCode() string { return e.Code }

// invalid makes an error about a field of the input.
func invalid(code, field, format string, args ...any) *Error {
	return &Error{Code: code, Field: field, Message: fmt.Sprintf(format, args...), class: ErrInvalid}
}

// conflict makes an error about what the caller's input meets.
func conflict(code, field, format string, args ...any) *Error {
	return &Error{Code: code, Field: field, Message: fmt.Sprintf(format, args...), class: ErrConflict}
}

// classified is how an SQLSTATE reads.
type classified struct {
	class error
	code  string
}

// sqlStates are the SQLSTATEs that mean something of their own; docs/sql.md lists those of append.
var sqlStates = map[string]classified{
	"KL001": {ErrConflict, CodeWrongExpectedSeq},
	"KL002": {ErrConflict, CodeIdempotencyConflict},
	"KL003": {ErrInvalid, CodeInvalidArgument},
	"KL004": {ErrInvalid, CodeUnknownEventType},
	"KL005": {ErrInvalid, CodePayloadTooLarge},
	"KL006": {ErrNotFound, CodeNotFound},
	"KL007": {ErrInvalid, CodeInProcessType},
	"KL010": {ErrInvalid, CodeAppendOnly},
	"KL020": {ErrFenced, CodeWorkerNotLive},
	"23505": {ErrConflict, CodeConstraint},
	"25006": {ErrUnavailable, CodeUnavailable}, // read-only: a standby, or a server that was one
	"25P02": {nil, CodeTransactionAborted},
	"25P03": {ErrUnavailable, CodeUnavailable}, // it said nothing in the middle of a transaction for too long: the server has ended it
	"40001": {ErrConflict, CodeSerialization},
	"40P01": {ErrConflict, CodeDeadlock},
	"42501": {nil, CodePermissionDenied},
	"3F000": {ErrNotFound, CodeNotInstalled},
	"42P01": {ErrNotFound, CodeNotInstalled},
	"42883": {ErrNotFound, CodeNotInstalled},
	"55P03": {ErrUnavailable, CodeLockTimeout},
	"57014": {ErrUnavailable, CodeCancelled}, // a statement timeout, or somebody cancelled it
}

// sqlClasses are the rest, by the first two characters.
var sqlClasses = map[string]classified{
	"08": {ErrUnavailable, CodeUnavailable},
	"22": {ErrInvalid, CodeInvalidArgument},
	"23": {ErrInvalid, CodeConstraint},
	"53": {ErrUnavailable, CodeUnavailable},
	"54": {ErrInvalid, CodeTooComplex},
	"57": {ErrUnavailable, CodeUnavailable},
	"58": {ErrUnavailable, CodeUnavailable},
}

// translate is the one reader of errors from a database driver, any driver: it
// asks for SQLState() only. nil stays nil, and an *Error stays what it is.
func translate(op string, err error) error {
	if err == nil {
		return nil
	}
	var own *Error
	if errors.As(err, &own) {
		return err
	}
	e := &Error{Message: err.Error(), op: op, cause: err}
	var state interface{ SQLState() string }
	if !errors.As(err, &state) {
		e.Code, e.class = withoutState(err)
		return e
	}
	c, ok := sqlStates[state.SQLState()]
	if !ok && len(state.SQLState()) == 5 {
		c, ok = sqlClasses[state.SQLState()[:2]]
	}
	if !ok {
		c.code = CodeDatabase
	}
	e.class, e.Code = c.class, c.code
	if c.code == CodeNotInstalled {
		e.Message += " (is Keyline's schema installed here? `keyline migrate up` installs it)"
	}
	return e
}

// withoutState reads an error that no server sent.
func withoutState(err error) (code string, class error) {
	switch {
	case errors.Is(err, context.Canceled):
		return CodeCancelled, nil
	case errors.Is(err, pgx.ErrTxClosed), errors.Is(err, sql.ErrTxDone):
		return CodeTransactionClosed, nil
	}
	return CodeUnavailable, ErrUnavailable
}
