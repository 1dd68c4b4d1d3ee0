package cli

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/keylinehq/keyline/internal/testdb"
	"github.com/keylinehq/keyline/migrations"
)

func TestAMigrationThatWasKeptFromGoingOnIsToBeTriedAgain(t *testing.T) {
	t.Parallel()
	conn := testdb.NewEmpty(t).Connect()
	other := errors.New("something else")
	if got := exitCode(interfered(conn, fmt.Errorf("migrate: %w", migrations.ErrBusy))); got != exitUnavailable {
		t.Errorf("beside others' locks: exit code %d", got)
	}
	if got := exitCode(interfered(conn, other)); got != exitFailure {
		t.Errorf("what is wrong with it: exit code %d", got)
	}
	_, err := conn.Exec(t.Context(), "select pg_terminate_backend(pg_backend_pid())")
	if got := exitCode(interfered(conn, err)); got != exitUnavailable {
		t.Errorf("ended by the server (%v): exit code %d", err, got)
	}
	if err := interfered(conn, context.Canceled); !errors.Is(err, context.Canceled) || exitCode(err) == exitUnavailable {
		t.Errorf("interrupted: %v", err)
	}
}
