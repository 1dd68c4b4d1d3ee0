//go:build !unix

package demo

import "os/exec"

func apart(*exec.Cmd) {}

// Without signals a worker cannot be frozen: it is killed as it runs.
func (p *process) freeze() error { return nil }
func (p *process) thaw() error   { return nil }
