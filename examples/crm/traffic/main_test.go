package traffic_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/keylinehq/keyline/internal/testdb"
)

func TestMain(m *testing.M) {
	// Started by a test, this binary is a worker process.
	if url := os.Getenv(envWorker); url != "" {
		if err := workerProcess(url, os.Getenv(envName)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(testdb.Main(m))
}
