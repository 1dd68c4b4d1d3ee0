//go:build unix

package demo

import (
	"os/exec"
	"syscall"
)

// apart puts a process into a group of its own: Ctrl-C reaches a whole group,
// and the workers are ours to stop.
func apart(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// freeze stops a process in its tracks; thaw lets it go on.
func (p *process) freeze() error { return p.cmd.Process.Signal(syscall.SIGSTOP) }
func (p *process) thaw() error   { return p.cmd.Process.Signal(syscall.SIGCONT) }
