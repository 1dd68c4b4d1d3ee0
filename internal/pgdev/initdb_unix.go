//go:build unix

package pgdev

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// initialize makes a cluster unless there is one, and reads its password.
func (s *Server) initialize(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(s.place.data, "PG_VERSION")); err == nil {
		return s.readPassword()
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("look for a cluster: %w", err)
	}
	s.secret = rand.Text()
	if err := os.WriteFile(s.place.password, []byte(s.secret+"\n"), 0o600); err != nil {
		return fmt.Errorf("initialize PostgreSQL: %w", err)
	}
	if err := s.acct.chown(s.place.password); err != nil {
		return fmt.Errorf("initialize PostgreSQL: %w", err)
	}
	args := []string{
		"-D", s.place.data, "-U", superuser, "--encoding=UTF8", "--no-locale", "--no-instructions",
		// Whoever gets to the socket was let into its directory. A loopback
		// port is open to everybody on the machine.
		"--auth-local=trust", "--auth-host=scram-sha-256", "--pwfile=" + s.place.password,
	}
	if !s.opts.Durable {
		args = append(args, "--no-sync")
	}
	log, err := openLog(s.place.log)
	if err != nil {
		return err
	}
	defer log.close()
	p, err := launch(s.acct, log.file, filepath.Join(s.bin, "initdb"), args...)
	if err != nil {
		return s.explain(fmt.Errorf("initialize PostgreSQL: %w", err))
	}
	s.guard.watch(p.pid())
	defer s.guard.watch(0)
	select {
	case <-p.done:
	case <-ctx.Done():
		p.signal(syscall.SIGTERM) // initdb removes what it has made
		<-p.done
		return fmt.Errorf("initialize PostgreSQL: %w", context.Cause(ctx))
	}
	if p.err != nil {
		return fmt.Errorf("initialize PostgreSQL: initdb: %w%s", p.err, log.tail())
	}
	return nil
}

func (s *Server) readPassword() error {
	content, err := os.ReadFile(s.place.password)
	if err != nil {
		return fmt.Errorf("the cluster in %s was not made by this program: %w", s.place.data, err)
	}
	s.secret = string(content[:max(0, len(content)-1)])
	return nil
}
