//go:build unix

package testdb

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

const canShare = true

// A run is a directory that the processes of one `go test` share.
//
//	start.lock    held while somebody looks for, or starts, the keeper
//	keeper.json   what the keeper says of itself; gone when it is going
//	users-N.lock  keeper N's users: each holds it shared while it lives
//	keeper.log    what a keeper had to complain about
type run struct{ dir string }

// kept is what a keeper tells those who use its server.
type kept struct {
	URL   string `json:"url"`
	Users string `json:"users"` // the lock file
}

func runDir(owner int) string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("keyline-test-%d-%d", os.Getuid(), owner))
}

// joinRun returns the maintenance database of the run's server, whose keeper it
// starts if there is none. The server stays for as long as the membership is
// not closed and this process lives.
func joinRun(owner int) (url string, membership *os.File, err error) {
	r := run{runDir(owner)}
	if err := r.make(); err != nil {
		return "", nil, err
	}
	lock, err := lockFile(filepath.Join(r.dir, "start.lock"), syscall.LOCK_EX)
	if err != nil {
		return "", nil, err
	}
	defer lock.Close()
	k, err := r.read()
	if err != nil {
		return "", nil, err
	}
	if k != nil {
		// Refused by a keeper that is about to end.
		f, err := lockFile(k.Users, syscall.LOCK_SH|syscall.LOCK_NB)
		if err == nil {
			return k.URL, f, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, fs.ErrNotExist) {
			return "", nil, err
		}
	}
	if k, err = r.startKeeper(owner); err != nil {
		return "", nil, err
	}
	if membership, err = lockFile(k.Users, syscall.LOCK_SH); err != nil {
		return "", nil, err
	}
	return k.URL, membership, nil
}

// make creates the directory, or sees to it that the one there is ours: its
// name can be foreseen.
func (r run) make() error {
	err := os.Mkdir(r.dir, 0o700)
	if err == nil || !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := os.Lstat(r.dir)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || int(st.Uid) != os.Getuid() || info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s is not a directory of ours alone", r.dir)
	}
	return nil
}

// read returns what the keeper has said; nil if there is none, or if it was
// killed.
func (r run) read() (*kept, error) {
	content, err := os.ReadFile(r.file())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var k kept
	if err := json.Unmarshal(content, &k); err != nil {
		return nil, fmt.Errorf("%s: %w", r.file(), err)
	}
	// A keeper holds a lock beside its users' for as long as it lives.
	alive, err := lockFile(aliveLock(k.Users), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return nil, alive.Close()
	}
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return &k, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return nil, err
}

func (r run) file() string { return filepath.Join(r.dir, "keeper.json") }

func aliveLock(users string) string { return users + ".alive" }

// startKeeper starts this program again as a keeper and waits until its server
// runs.
func (r run) startKeeper(owner int) (*kept, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	logPath := filepath.Join(r.dir, "keeper.log")
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s", envKeeper, r.dir), fmt.Sprintf("%s=%d", envOwner, owner))
	cmd.Dir = "/"
	cmd.Stderr = log
	// Apart from the terminal, and from the process group that a timeout kills.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a keeper: %w", err)
	}
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err != nil {
		_ = cmd.Wait()
		said, _ := os.ReadFile(logPath)
		return nil, fmt.Errorf("the keeper of the test server ended: %s", said)
	}
	// It outlives us; nobody here waits for it.
	if err := errors.Join(stdout.Close(), cmd.Process.Release()); err != nil {
		return nil, err
	}
	var k kept
	if err := json.Unmarshal(line, &k); err != nil {
		return nil, fmt.Errorf("the keeper of the test server said %q: %w", line, err)
	}
	return &k, nil
}

// lockFile opens a file, which it creates only for an exclusive lock that may
// be waited for, and locks it. The lock goes with the file or the process.
func lockFile(path string, how int) (*os.File, error) {
	flags := os.O_RDWR
	if how == syscall.LOCK_EX {
		flags |= os.O_CREATE
	}
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(f.Fd()), how)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return f, nil
}
