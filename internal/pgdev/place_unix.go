//go:build unix

package pgdev

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
)

// account is whom the server runs as. A nil credential means: as this process.
type account struct {
	name       string
	credential *syscall.Credential
}

// unprivileged is the account to run as: our own, unless we are root, which
// PostgreSQL refuses to be.
func unprivileged() (account, error) {
	if os.Geteuid() != 0 {
		return account{}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(uidErr, gidErr); err != nil {
			return account{}, fmt.Errorf("account %s: %w", name, err)
		}
		return account{name, &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, nil
	}
	return account{}, errors.New("PostgreSQL does not run as root, and there is no account postgres or nobody to run it as")
}

func (a account) chown(path string) error {
	if a.credential == nil {
		return nil
	}
	return os.Chown(path, int(a.credential.Uid), int(a.credential.Gid))
}

// place is where a server keeps its things.
type place struct {
	data, socket, log, password string
	temporary                   []string // directories that go with the server
}

// prepare makes the directories. The data directory is left to initdb.
func prepare(dir string, acct account) (place, error) {
	temp, err := tempDir(acct)
	if err != nil {
		return place{}, err
	}
	pl := place{socket: temp, temporary: []string{temp}}
	if dir == "" {
		dir = temp
	} else if dir, err = ownDir(dir, acct); err != nil {
		return place{}, errors.Join(err, os.RemoveAll(temp))
	}
	pl.data = filepath.Join(dir, "data")
	pl.log = filepath.Join(dir, "postgres.log")
	pl.password = filepath.Join(dir, "password")
	return pl, nil
}

// tempDir makes a directory that only we and the server's account can enter:
// that, not a password, is what keeps other users of the machine out of the
// socket. Its path is short, because that of a socket may have no more than 103
// bytes (107 on Linux).
func tempDir(acct account) (string, error) {
	base := os.TempDir()
	if len(base) > 60 || unreachable(base, acct) != "" {
		base = "/tmp"
	}
	dir, err := os.MkdirTemp(base, "keyline-pg-")
	if err != nil {
		return "", fmt.Errorf("make a directory for PostgreSQL: %w", err)
	}
	if err := acct.chown(dir); err != nil {
		return "", errors.Join(fmt.Errorf("hand %s to account %s: %w", dir, acct.name, err), os.RemoveAll(dir))
	}
	return dir, nil
}

// ownDir makes the directory that the caller wants, if need be, and sees to it
// that the account can work in it.
func ownDir(dir string, acct account) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("data directory: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", fmt.Errorf("data directory: %w", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("data directory: %w", err)
	}
	if err := acct.chown(dir); err != nil {
		return "", fmt.Errorf("hand %s to account %s: %w", dir, acct.name, err)
	}
	if parent := unreachable(dir, acct); parent != "" {
		return "", fmt.Errorf("account %q, which PostgreSQL runs as because this process is root, cannot enter %s: choose a directory elsewhere, or do not run as root", acct.name, parent)
	}
	return dir, nil
}

// unreachable names the first directory on the way to dir that the account may
// not enter; "" if there is none.
func unreachable(dir string, acct account) string {
	if acct.credential == nil {
		return ""
	}
	var way []string
	for d := dir; ; d = filepath.Dir(d) {
		way = append(way, d)
		if d == filepath.Dir(d) {
			break
		}
	}
	for _, d := range slices.Backward(way) {
		info, err := os.Stat(d)
		if err != nil {
			return d
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return ""
		}
		enter := fs.FileMode(0o001)
		switch {
		case st.Uid == acct.credential.Uid:
			enter = 0o100
		case st.Gid == acct.credential.Gid:
			enter = 0o010
		}
		if info.Mode().Perm()&enter == 0 {
			return d
		}
	}
	return ""
}
