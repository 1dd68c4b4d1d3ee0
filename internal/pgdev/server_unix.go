//go:build unix

package pgdev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/freeport"
)

// How long each stage of a shutdown may take before the next harsher one.
const (
	fastShutdown      = 20 * time.Second
	immediateShutdown = 5 * time.Second
	startTimeout      = 60 * time.Second
)

// Server is a running PostgreSQL server, or one that was stopped or killed and
// can be restarted. Its methods are safe for concurrent use.
type Server struct {
	opts   Options
	bin    string
	acct   account
	place  place
	port   int
	secret string // password for TCP
	guard  *guard
	clk    clock.Clock

	mu      sync.Mutex
	proc    *process // nil: not running
	crashed bool     // ended by Kill and not started since
	stopped bool
}

// Start initializes a cluster where there is none, starts a server on it and
// returns when it accepts connections. The server outlives ctx, which bounds
// the start only; it ends with Stop or with this process.
func Start(ctx context.Context, o Options) (*Server, error) {
	bin := o.BinDir
	if bin == "" {
		found, err := Find()
		if err != nil {
			return nil, err
		}
		bin = found
	}
	acct, err := unprivileged()
	if err != nil {
		return nil, err
	}
	pl, err := prepare(o.Dir, acct)
	if err != nil {
		return nil, err
	}
	s := &Server{opts: o, bin: bin, acct: acct, place: pl, clk: clock.Real()}
	if err := s.boot(ctx); err != nil {
		return nil, errors.Join(err, s.Stop()) //nolint:contextcheck // cleaning up goes on when the caller has given up
	}
	return s, nil
}

func (s *Server) boot(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	g, err := startGuard(s.place.temporary)
	if err != nil {
		return err
	}
	s.guard = g
	if err := s.initialize(ctx); err != nil {
		return err
	}
	return s.start(ctx)
}

// start runs the server and waits until it is ready. The mutex is held.
func (s *Server) start(ctx context.Context) error {
	for try := 1; ; try++ {
		s.port = defaultPort
		if s.opts.TCP {
			port, err := choosePort(ctx, s.opts.Port)
			if err != nil {
				return err
			}
			s.port = port
		}
		err := s.startOnce(ctx)
		if err == nil {
			s.crashed = false
			return nil
		}
		switch {
		// Somebody took the free port between the choice and its use.
		case s.opts.TCP && s.opts.Port == 0 && try < 5 && strings.Contains(err.Error(), "Address already in use"):
		// After Kill: a backend has not noticed yet that its postmaster is gone.
		case strings.Contains(err.Error(), "pre-existing shared memory block") && try < 200:
			if err := clock.Sleep(ctx, s.clk, 50*time.Millisecond); err != nil {
				return err
			}
		default:
			return err
		}
	}
}

func (s *Server) startOnce(ctx context.Context) error {
	log, err := openLog(s.place.log)
	if err != nil {
		return err
	}
	defer log.close()
	args := append([]string{"-D", s.place.data}, s.opts.arguments(s.place.socket, s.port)...)
	p, err := launch(s.acct, log.file, filepath.Join(s.bin, "postgres"), args...)
	if err != nil {
		return s.explain(fmt.Errorf("start PostgreSQL: %w", err))
	}
	s.guard.watch(p.pid())
	if err := s.awaitReady(ctx, p); err != nil {
		p.signal(syscall.SIGQUIT)
		<-p.done
		s.guard.watch(0)
		return fmt.Errorf("start PostgreSQL: %w%s", err, log.tail())
	}
	s.proc = p
	return nil
}

// awaitReady waits until the server says in its pid file that it is ready, as
// pg_ctl does: no client library and no password is needed to see it.
func (s *Server) awaitReady(ctx context.Context, p *process) error {
	tick := s.clk.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	pid := strconv.Itoa(p.pid())
	for {
		content, err := os.ReadFile(filepath.Join(s.place.data, "postmaster.pid"))
		lines := strings.Split(string(content), "\n")
		// The pid in the first line tells our server from one that already runs
		// on this directory, and from what a killed one left.
		if err == nil && len(lines) >= 8 && lines[0] == pid && strings.TrimSpace(lines[7]) == "ready" {
			return nil
		}
		select {
		case <-tick.C():
		case <-p.done:
			return fmt.Errorf("the server ended at once (%w)", p.failure())
		case <-ctx.Done():
			return fmt.Errorf("the server did not get ready: %w", context.Cause(ctx))
		}
	}
}

// URL is the connection string of database db over the Unix socket. It names
// everything, so that PGPORT and its like in the environment change nothing.
func (s *Server) URL(db string) string { return socketURL(s.place.socket, s.currentPort(), db) }

// TCPURL is the connection string over loopback; it contains the password.
// Empty if the server was started without TCP.
func (s *Server) TCPURL(db string) string {
	if !s.opts.TCP {
		return ""
	}
	return tcpURL(s.currentPort(), s.secret, db)
}

func (s *Server) currentPort() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.port
}

// PID is the process id of the postmaster; 0 while it does not run.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil || s.proc.ended() {
		return 0
	}
	return s.proc.pid()
}

// DataDir is the data directory.
func (s *Server) DataDir() string { return s.place.data }

// LogFile is where the server logs to.
func (s *Server) LogFile() string { return s.place.log }

// BinDir is the directory of the server binaries in use.
func (s *Server) BinDir() string { return s.bin }

// Stop ends the server: clients are disconnected, open transactions rolled
// back, the data is written. A temporary directory is removed. It may be called
// more than once.
func (s *Server) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil
	}
	s.stopped = true
	if s.crashed || (s.proc != nil && s.proc.ended()) {
		// A killed server leaves shared memory behind, which only the next
		// server on its directory finds and frees. If it does not start, there
		// is nothing to be done.
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		_ = s.start(ctx)
		cancel()
	}
	err := s.halt()
	for _, dir := range s.place.temporary {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return errors.Join(err, s.guard.release())
}

// halt ends the server process, if there is one. The mutex is held.
func (s *Server) halt() error {
	p := s.proc
	if p == nil {
		return nil
	}
	s.proc = nil
	defer s.guard.watch(0)
	for _, stage := range []struct {
		sig  syscall.Signal
		wait time.Duration
	}{{syscall.SIGINT, fastShutdown}, {syscall.SIGQUIT, immediateShutdown}} {
		p.signal(stage.sig)
		timer := s.clk.NewTimer(stage.wait)
		select {
		case <-p.done:
			timer.Stop()
			return nil
		case <-timer.C():
		}
	}
	p.signal(syscall.SIGKILL)
	<-p.done
	return fmt.Errorf("PostgreSQL (pid %d) had to be killed", p.pid())
}

// Restart stops the server if it runs, and starts it again on the same data and
// the same socket (and a fixed Port, where one was given).
func (s *Server) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return errors.New("restart PostgreSQL: it was stopped")
	}
	if err := s.halt(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return s.start(ctx)
}

// Kill ends the server and its backends with SIGKILL, as a crash would. Restart
// brings it back, through crash recovery.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.proc
	if p == nil {
		return
	}
	s.proc, s.crashed = nil, true
	p.signal(syscall.SIGKILL)
	<-p.done
	s.guard.watch(0)
	s.endBackends()
}

// endBackends kills what a killed server has left and waits until it is gone: what it started in its last moment, too, and
// what is in the middle of a write. While one is left, no server starts on the data.
func (s *Server) endBackends() {
	// As the kernel names it.
	dir, err := filepath.EvalSymlinks(s.place.data)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	for left := serversIn(dir); len(left) > 0 && ctx.Err() == nil; left = serversIn(dir) {
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		_ = clock.Sleep(ctx, s.clk, time.Millisecond)
	}
}

// explain adds what root usually needs to know about a binary that would not
// start.
func (s *Server) explain(err error) error {
	if s.acct.credential != nil && errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("%w (run as account %q because the process is root: it must be able to reach %s)", err, s.acct.name, s.bin)
	}
	return err
}

// choosePort returns want, or a free loopback port for 0.
func choosePort(ctx context.Context, want int) (int, error) {
	if want != 0 {
		return want, nil
	}
	return freeport.Choose(ctx)
}
