//go:build !unix

package testdb

import (
	"errors"
	"os"
)

// Without a Unix system there is no embedded server to share: DATABASE_URL has
// to be set.
const canShare = false

const envKeeper = "KEYLINE_TESTDB_KEEPER"

func keeper(string) int { return 2 }

func joinRun(int) (string, *os.File, error) { return "", nil, errors.ErrUnsupported }
