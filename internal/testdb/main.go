package testdb

import (
	"fmt"
	"os"
	"sync/atomic"

	"go.uber.org/goleak"
)

// hasMain is whether this process can be turned into a keeper when it is
// started again.
var hasMain atomic.Bool

// Runner makes Main out of something that wants a *testing.M to run, such as
// testscript.Main: testscript.Main(testdb.Runner{M: m}, commands).
type Runner struct {
	M interface{ Run() int }
	// Leaks are the options for goleak.
	Leaks []goleak.Option
}

// Run is Main.
func (r Runner) Run() int { return Main(r.M, r.Leaks...) }

// Main runs the tests of a package and then fails if goroutines were left
// behind. Its result is for os.Exit. A package that uses New calls it from
// TestMain, before anything else, and in this way takes part in the shared
// server.
func Main(m interface{ Run() int }, leaks ...goleak.Option) int {
	code := Shared(m)
	// A failed test may well have left goroutines behind; that it failed is
	// what is to be read.
	if code == 0 {
		if err := goleak.Find(leaks...); err != nil {
			fmt.Fprintln(os.Stderr, "testdb: goroutines left behind by the tests:", err)
			code = 1
		}
	}
	return code
}

// Shared is Main without a look at goroutines, for packages whose programs are
// not ours.
func Shared(m interface{ Run() int }) int {
	if dir := os.Getenv(envKeeper); dir != "" {
		return keeper(dir)
	}
	hasMain.Store(true)
	code := m.Run()
	if err := leaveCluster(); err != nil {
		fmt.Fprintln(os.Stderr, "testdb:", err)
		code = max(code, 1)
	}
	return code
}
