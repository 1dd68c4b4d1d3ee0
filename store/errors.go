package store

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/keylinehq/keyline/keylinetype"
)

// SQLSTATEs that the store acts on.
const (
	stateWorkerNotLive  = "KL020"
	stateClaimLost      = "KL021"
	stateNoRow          = "KL022" // a delivery's row is not as its holder says: HandleTx finds out why, and nobody else sees it
	stateXact           = "KL023" // a notice: the id of a HandleTx transaction
	stateNoRecord       = "KL006"
	stateCheck          = "23514"
	stateReadOnly       = "25006"
	stateSilent         = "25P03" // the client said nothing in the middle of a transaction, for longer than it may
	stateSerialization  = "40001"
	stateDeadlock       = "40P01"
	statePrivilege      = "42501"
	stateLockTimeout    = "55P03"
	stateCancelled      = "57014" // a statement timeout, or somebody cancelled it
	classConnection     = "08"
	classShutdown       = "57P"
	classOutOfResources = "53" // connections among them
	classSystem         = "58" // the server's machine: input and output, files
)

// errUnencodable: the statement was never sent, and never can be.
var errUnencodable = errors.New("cannot be encoded")

// sqlState returns an error's SQLSTATE, or "" where the database did not answer.
func sqlState(err error) string {
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		return state.SQLState()
	}
	return ""
}

// translate classes an error by what the caller may do.
func translate(what string, err error) error {
	switch {
	case err == nil:
		return nil
	case classed(err):
		return fmt.Errorf("%s: %w", what, err)
	case sqlState(err) == stateWorkerNotLive || sqlState(err) == stateClaimLost:
		return fmt.Errorf("%s: %w: %w", what, keylinetype.ErrFenced, err)
	case sqlState(err) == stateNoRecord:
		return fmt.Errorf("%s: %w: %w", what, keylinetype.ErrNotFound, err)
	case sqlState(err) == stateCheck:
		return fmt.Errorf("%s: %w: %w", what, keylinetype.ErrInvalid, err)
	case unavailable(err):
		return fmt.Errorf("%s: %w: %w", what, keylinetype.ErrUnavailable, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// classed reports whether an error, though no server sent it, says already what
// the caller may do: without an SQLSTATE it would read as a lost connection.
func classed(err error) bool {
	for _, class := range []error{keylinetype.ErrNotFound, keylinetype.ErrConflict, keylinetype.ErrInvalid, keylinetype.ErrFenced} {
		if errors.Is(err, class) {
			return true
		}
	}
	return false
}

// unavailable reports whether the statement may have failed, or may have been
// carried out, without anything being wrong with it.
func unavailable(err error) bool {
	if errors.Is(err, context.Canceled) || errors.Is(err, errUnencodable) {
		return false
	}
	if refused := (*pgconn.ConnectError)(nil); errors.As(err, &refused) {
		return true // whatever the server has against this connection (a password that was changed), it has not seen the statement
	}
	state := sqlState(err)
	if state == "" {
		return true // no answer: the connection, a timeout, the pool
	}
	for _, class := range []string{classConnection, classShutdown, classOutOfResources, classSystem} {
		if strings.HasPrefix(state, class) {
			return true
		}
	}
	return state == stateReadOnly || state == stateSilent
}

// beside reports whether an error is about what surrounds a statement, and not about what it says: a right, a function or a
// schema that is not there, as in the middle of an upgrade; a plan that has to be made anew. The same
// statement can succeed later, and any other would fail alike.
func beside(err error) bool {
	state := sqlState(err)
	if len(state) != 5 {
		return false
	}
	switch state[:2] {
	case "0A", "0P", "28", "3D", "3F", "42", "55", "F0":
		return true
	}
	return false
}

// transient reports whether the same statement may simply be sent again: it
// was rolled back for reasons of concurrency.
func transient(err error) bool {
	switch sqlState(err) {
	case stateSerialization, stateDeadlock, stateLockTimeout:
		return true
	}
	return false
}
