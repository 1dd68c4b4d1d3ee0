package demo

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
)

// cluster is the demo's worker processes.
type cluster struct {
	program  []string // command line that makes a worker
	prefix   string   // of the workers' names
	url      string
	sabotage string

	mu      sync.Mutex
	workers []*process
	killed  int
}

// process is one worker process.
type process struct {
	name  string
	cmd   *exec.Cmd
	input io.Closer
	talk  beginning // standard error; read when the process has ended
	ready chan struct{}
	ended chan struct{}
	err   error // why it ended; read when it has

	mu       sync.Mutex
	expected bool // its end is our doing
}

// EnvDatabaseURL tells a worker process where the database is: a command line
// is for everybody on the machine to read.
const EnvDatabaseURL = "KEYLINE_DATABASE_URL"

// beginning keeps the first of what is written: the first error tells most.
type beginning struct{ text []byte }

const beginningSize = 4 << 10

func (b *beginning) Write(p []byte) (int, error) {
	b.text = append(b.text, p[:min(len(p), beginningSize-len(b.text))]...)
	return len(p), nil
}

func (b *beginning) String() string { return strings.TrimSpace(string(b.text)) }

// start starts a worker process.
func (c *cluster) start() (*process, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := &process{name: fmt.Sprintf("%sw%d", c.prefix, len(c.workers)+1), ready: make(chan struct{}), ended: make(chan struct{})}
	args := append(slices.Clone(c.program), "--name", p.name, "--sabotage", c.sabotage)
	p.cmd = exec.Command(args[0], args[1:]...)
	p.cmd.Env = append(os.Environ(), EnvDatabaseURL+"="+c.url)
	p.cmd.Stderr = &p.talk
	apart(p.cmd)
	input, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start worker %s: %w", p.name, err)
	}
	p.input = input
	output, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start worker %s: %w", p.name, err)
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start worker %s: %w", p.name, err)
	}
	go func() {
		defer close(p.ended)
		lines := bufio.NewScanner(output)
		for told := false; lines.Scan(); {
			if !told && lines.Text() == readyLine {
				told = true
				close(p.ready)
			}
		}
		p.err = p.cmd.Wait()
	}()
	c.workers = append(c.workers, p)
	return p, nil
}

// await waits until a worker has joined.
func (p *process) await(ctx context.Context) error {
	select {
	case <-p.ready:
		return nil
	case <-p.ended:
		return p.failure()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// failure is how a process has ended that should not have.
func (p *process) failure() error {
	return fmt.Errorf("worker %s ended (%w): %s", p.name, p.err, p.talk.String())
}

// kill is kill -9, and waits for the end.
func (c *cluster) kill(p *process) error {
	p.expect()
	if err := p.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("kill worker %s: %w", p.name, err)
	}
	<-p.ended
	_ = p.input.Close()
	c.mu.Lock()
	c.killed++
	c.mu.Unlock()
	return nil
}

func (p *process) expect() {
	p.mu.Lock()
	p.expected = true
	p.mu.Unlock()
}

// of returns the process with this pid, if it is one of ours and runs.
func (c *cluster) of(pid int) *process {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.workers {
		if p.cmd.Process.Pid == pid && p.running() {
			return p
		}
	}
	return nil
}

func (p *process) running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// counts are the processes started and killed.
func (c *cluster) counts() (started, killed int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.workers), c.killed
}

// casualties are the workers that ended without being told to.
func (c *cluster) casualties() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var err error
	for _, p := range c.workers {
		p.mu.Lock()
		expected := p.expected
		p.mu.Unlock()
		if !expected && !p.running() {
			err = errors.Join(err, p.failure())
		}
	}
	return err
}

// complaints are what the workers have logged, which is errors only. It is
// called when they have ended.
func (c *cluster) complaints() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []string
	for _, p := range c.workers {
		if line, _, _ := strings.Cut(p.talk.String(), "\n"); line != "" && !p.running() {
			list = append(list, fmt.Sprintf("worker %s: %s", p.name, line))
		}
	}
	return list
}

// stop asks all workers to end and waits for them; when ctx ends they are
// killed. The error is about those that did not end well.
func (c *cluster) stop(ctx context.Context) error {
	c.mu.Lock()
	workers := slices.Clone(c.workers)
	c.mu.Unlock()
	err := c.casualties()
	var asked []*process
	for _, p := range workers {
		if p.running() {
			p.expect()
			_ = p.thaw()
			asked = append(asked, p)
		}
		_ = p.input.Close()
	}
	for _, p := range asked {
		select {
		case <-p.ended:
		case <-ctx.Done():
			_ = p.cmd.Process.Kill()
			<-p.ended
		}
		if p.err != nil {
			err = errors.Join(err, p.failure())
		}
	}
	return err
}
