package testdb

import (
	"errors"
	"os"
	"testing"

	"github.com/keylinehq/keyline/internal/pgdev"
)

// NewServer starts a server that belongs to one test, for tests that crash,
// restart or reconfigure it; it ends with the test. With DATABASE_URL and no
// server binaries on the machine, the test is skipped.
func NewServer(t testing.TB, o pgdev.Options) *pgdev.Server {
	t.Helper()
	s, err := pgdev.Start(t.Context(), o)
	if errors.Is(err, pgdev.ErrNoServer) && os.Getenv("DATABASE_URL") != "" {
		t.Skipf("needs a server of its own: %v", err)
	}
	if err != nil {
		t.Fatalf("testdb: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Errorf("testdb: %v", err)
		}
	})
	return s
}
