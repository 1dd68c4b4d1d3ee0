//go:build unix

package pgdev

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

//go:embed guard.sh
var guardScript string

// guard is a shell process that outlives us for a moment to clean up. It holds
// the reading end of a pipe whose writing end only we have, so it sees our end
// however we meet it.
type guard struct {
	cmd *exec.Cmd
	w   *os.File
}

func startGuard(temporary []string) (*guard, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("guard PostgreSQL: %w", err)
	}
	cmd := exec.Command("/bin/sh", append([]string{"-c", guardScript, "keyline-pg-guard"}, temporary...)...)
	cmd.Dir = "/"
	cmd.Stdin = r
	// A session of its own, so that what ends our terminal or our process group
	// does not end it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	_ = r.Close()
	if err != nil {
		_ = w.Close()
		return nil, fmt.Errorf("guard PostgreSQL: %w", err)
	}
	return &guard{cmd, w}, nil
}

// watch tells the guard which process to end; 0: none. A guard that somebody
// has killed is done without.
func (g *guard) watch(pid int) { _, _ = fmt.Fprintln(g.w, "watch", pid) }

// release ends the guard: there is nothing left to clean up.
func (g *guard) release() error {
	if g == nil {
		return nil
	}
	_, _ = fmt.Fprintln(g.w, "release")
	_ = g.w.Close()
	if err := g.cmd.Wait(); err != nil {
		return fmt.Errorf("guard of PostgreSQL: %w", err)
	}
	return nil
}
