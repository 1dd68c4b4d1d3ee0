package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/pgdev"
	"github.com/keylinehq/keyline/migrations"
)

// The exit codes.
const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitConflict    = 4
	exitUnavailable = 5
	exitInterrupted = 130
)

var errInterrupted = errors.New("interrupted")

// usageError is a command line that makes no sense.
type usageError struct {
	command string // whose help to read; "" where help would not help
	err     error
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(cmd *cobra.Command, format string, args ...any) error {
	return &usageError{command: cmd.CommandPath(), err: fmt.Errorf(format, args...)}
}

// exitError is an exit code that no class of error says. Without err there is
// nothing to say: the command's output said it.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}
func (e *exitError) Unwrap() error { return e.err }

// found is the end of a check that found something and has printed it.
func found() error { return &exitError{code: exitFailure} }

func exitCode(err error) int {
	var (
		usage *usageError
		exit  *exitError
	)
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &exit):
		return exit.code
	case errors.As(err, &usage):
		return exitUsage
	case errors.Is(err, errInterrupted):
		return exitInterrupted
	case errors.Is(err, keyline.ErrInvalid):
		return exitUsage
	case errors.Is(err, keyline.ErrNotFound), errors.Is(err, migrations.ErrNotInstalled), noDatabase(err):
		return exitNotFound
	case errors.Is(err, keyline.ErrConflict), errors.Is(err, migrations.ErrTaken), errors.Is(err, migrations.ErrInUse):
		return exitConflict
	case errors.Is(err, keyline.ErrUnavailable), errors.Is(err, context.DeadlineExceeded), errors.Is(err, pgdev.ErrNoServer):
		return exitUnavailable
	}
	return exitFailure
}

// noDatabase reports whether the server has no such database.
func noDatabase(err error) bool {
	var state interface{ SQLState() string }
	return errors.As(err, &state) && state.SQLState() == "3D000"
}
