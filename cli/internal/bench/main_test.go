package bench

import (
	"os"
	"testing"

	"github.com/keylinehq/keyline/internal/testdb"
)

func TestMain(m *testing.M) { os.Exit(testdb.Main(m)) }
