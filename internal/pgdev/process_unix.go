//go:build unix

package pgdev

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// process is a child that ends with this process.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the child has been waited for
	err  error         // what Wait said; to be read after done
}

// launch starts a program under the account, with working directory "/" (the
// account may have no right to be in ours) and output to out.
func launch(acct account, out *os.File, program string, args ...string) (*process, error) {
	cmd := exec.Command(program, args...)
	cmd.Dir = "/"
	cmd.Env = environment()
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: acct.credential,
		// A group of its own: Ctrl-C in a terminal is for us, who then stop the
		// server when its clients are done.
		Setpgid: true,
	}
	dieWithParent(cmd.SysProcAttr)
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// Pdeathsig fires when the *thread* that forked ends, so this goroutine
		// keeps it to itself for as long as the child runs. It returns without
		// unlocking, which ends the thread.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.err = cmd.Wait()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// signal tells the process; that it has ended already is not an error here.
func (p *process) signal(sig syscall.Signal) { _ = p.cmd.Process.Signal(sig) }

// failure is what Wait said, or that there was nothing to say.
func (p *process) failure() error {
	if p.err == nil {
		return errors.New("exit status 0")
	}
	return p.err
}

// environment is what the server's programs get: none of the PG variables, for
// several of them (PGDATA, PGPORT, PGOPTIONS, …) would change what is run.
func environment() []string {
	env := []string{"LC_ALL=C", "HOME=/"}
	for _, name := range []string{"PATH", "TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}
