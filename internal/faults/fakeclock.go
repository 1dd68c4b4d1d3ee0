package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/keylinehq/keyline/internal/pgdev"
)

// openClocked makes a database on a server of its own that runs under
// libfaketime. What is returned sets its clock: "+3600" is an hour ahead, a date
// and time stand still. What counts time by the monotonic clock is not touched.
func (t *stage) openClocked() (set func(string)) {
	libs, err := filepath.Glob("/usr/lib/*/faketime/libfaketime.so.1")
	if err != nil || len(libs) == 0 {
		t.skip("libfaketime is not installed")
	}
	bin, err := pgdev.Find()
	t.must(err, "find the server")
	dir, err := os.MkdirTemp("", "keyline-faults-clock-")
	t.must(err, "make a directory")
	t.onEnd(func() { _ = os.RemoveAll(dir) })
	t.must(os.Chmod(dir, 0o755), "open a directory") //nolint:gosec // read by another account
	steps := filepath.Join(dir, "step")
	set = func(step string) {
		t.must(os.WriteFile(steps+".new", []byte(step), 0o644), "write a file") //nolint:gosec // likewise
		t.must(os.Rename(steps+".new", steps), "move a file")
	}
	set("+0")
	wrapper := fmt.Sprintf("#!/bin/sh\nexport LD_PRELOAD=%s FAKETIME_TIMESTAMP_FILE=%s FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1\nexec %s/postgres \"$@\"\n", libs[0], steps, bin)
	entries, err := os.ReadDir(bin)
	t.must(err, "read a directory")
	for _, e := range entries {
		if e.Name() != "postgres" {
			t.must(os.Symlink(filepath.Join(bin, e.Name()), filepath.Join(dir, e.Name())), "link")
		}
	}
	// A cluster that was made by the real binaries, served by the wrapped one.
	t.must(os.WriteFile(filepath.Join(dir, "postgres"), []byte(wrapper), 0o755), "write a file") //nolint:gosec // a program
	data, err := os.MkdirTemp("", "keyline-faults-data-")
	t.must(err, "make a directory")
	t.must(os.Chmod(data, 0o777), "open a directory") //nolint:gosec // likewise
	t.onEnd(func() { _ = os.RemoveAll(data) })
	first, err := pgdev.Start(t.ctx, pgdev.Options{Dir: data})
	t.must(err, "make a cluster")
	t.must(first.Stop(), "stop")
	t.openOwn(pgdev.Options{Dir: data, BinDir: dir})
	return set
}
