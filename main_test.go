package keyline_test

import (
	"os"
	"testing"

	"github.com/keylinehq/keyline/internal/testdb"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(childURL); url != "" {
		os.Exit(child(url, os.Getenv(childMode)))
	}
	os.Exit(testdb.Main(m))
}
