//go:build unix

package testdb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/pgdev"
)

// The environment of a keeper: the directory of the run, and the process that
// the run ends with.
const (
	envKeeper = "KEYLINE_TESTDB_KEEPER"
	envOwner  = "KEYLINE_TESTDB_OWNER"
)

const (
	// look is how often a keeper looks whether it is still needed.
	look = 200 * time.Millisecond
	// linger is how long it stays without users: longer than it takes to build
	// the tests of the next package.
	linger = time.Minute
)

// keeper is a whole program: it runs a server until the run is over.
func keeper(dir string) int {
	if err := keep(run{dir}, clock.Real()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func keep(r run, clk clock.Clock) (err error) {
	owner, err := strconv.Atoi(os.Getenv(envOwner))
	if err != nil {
		return fmt.Errorf("%s: %w", envOwner, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	removeLeftRuns()
	s, err := pgdev.Start(ctx, pgdev.Options{Settings: settings()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()

	k := kept{URL: s.URL("postgres"), Users: filepath.Join(r.dir, fmt.Sprintf("users-%d.lock", os.Getpid()))}
	alive, err := lockFile(aliveLock(k.Users), syscall.LOCK_EX)
	if err != nil {
		return err
	}
	defer alive.Close()
	users, err := lockFile(k.Users, syscall.LOCK_EX)
	if err != nil {
		return err
	}
	if err := users.Close(); err != nil {
		return err
	}
	line, err := json.Marshal(k)
	if err != nil {
		return err
	}
	if err := os.WriteFile(r.file(), line, 0o600); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(os.Stdout, "%s\n", line); err != nil {
		return err
	}
	return r.serve(clk, k, func() bool { return s.PID() == 0 || ended(owner) })
}

// serve returns when the run is over, with the run's files removed.
func (r run) serve(clk clock.Clock, k kept, over func() bool) error {
	tick := clk.NewTicker(look)
	defer tick.Stop()
	lastUsed := clk.Mono()
	for {
		if over() {
			// Whoever is still there has lost its parent, or its server.
			return os.RemoveAll(r.dir)
		}
		users, err := lockFile(k.Users, syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case errors.Is(err, syscall.EWOULDBLOCK):
			lastUsed = clk.Mono()
		case err != nil:
			return err
		case clk.Mono()-lastUsed < linger:
			if err := users.Close(); err != nil {
				return err
			}
		default:
			// Kept locked, so that nobody joins any more.
			defer users.Close()
			return errors.Join(os.Remove(r.file()), os.Remove(k.Users), os.Remove(aliveLock(k.Users)))
		}
		<-tick.C()
	}
}

// ended reports that a process is no more, or only a zombie.
func ended(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return true
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false // no /proc here
	}
	_, state, ok := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')')+1:]), " ")
	return ok && strings.HasPrefix(state, "Z")
}

// removeLeftRuns removes the directories of runs that are over: those of
// binaries that were started by hand, and of keepers that were killed.
func removeLeftRuns() {
	prefix := strings.TrimSuffix(runDir(0), "0")
	dirs, err := filepath.Glob(prefix + "*")
	if err != nil {
		return
	}
	for _, dir := range dirs {
		owner, err := strconv.Atoi(strings.TrimPrefix(dir, prefix))
		if err == nil && ended(owner) {
			_ = os.RemoveAll(dir)
		}
	}
}
