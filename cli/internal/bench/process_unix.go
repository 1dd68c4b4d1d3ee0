//go:build unix

package bench

import "syscall"

const canFreeze = true

// freeze stops the process in its tracks; its connections stay open.
func (w *process) freeze() error { return w.cmd.Process.Signal(syscall.SIGSTOP) }
