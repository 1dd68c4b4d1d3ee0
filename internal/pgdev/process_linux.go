package pgdev

import (
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// dieWithParent has the kernel ask the child for a fast shutdown when we end.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGINT }

// serversIn lists the server processes that work in a directory, as a server and all of its backends do in its data
// directory. One that has ended is not in it, even where nobody has waited for it yet.
func serversIn(dir string) []int {
	places, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		return nil
	}
	var pids []int
	for _, path := range places {
		if cwd, err := os.Readlink(path); err != nil || cwd != dir {
			continue
		}
		if name, err := os.ReadFile(filepath.Join(filepath.Dir(path), "comm")); err != nil || string(name) != "postgres\n" {
			continue // somebody's shell
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
