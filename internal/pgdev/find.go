package pgdev

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// EnvBinDir names the environment variable that says where PostgreSQL's server
// binaries are. Where it is set, no other place is tried.
const EnvBinDir = "KEYLINE_PG_BIN"

// Find returns the directory that holds the server binaries (postgres and
// initdb): KEYLINE_PG_BIN if that is set, else PATH, else what pg_config says,
// else the newest version in the places that packages install to. The error is
// a *NoServerError where there are none.
func Find() (string, error) { return host().find() }

// machine is what Find and the install command depend on, so that tests can
// describe machines other than the one they run on.
type machine struct {
	goos     string
	root     string // prefix of absolute paths: "" except in tests
	getenv   func(string) string
	lookPath func(string) (string, error)
	pgConfig func() (string, error)
	uid      int
}

func host() machine {
	return machine{
		goos:     runtime.GOOS,
		getenv:   os.Getenv,
		lookPath: exec.LookPath,
		uid:      os.Geteuid(),
		pgConfig: func() (string, error) {
			out, err := exec.Command("pg_config", "--bindir").Output()
			return strings.TrimSpace(string(out)), err
		},
	}
}

// packagePlaces are the patterns of directories that packages put server
// binaries in: Debian, PGDG's RPMs, SUSE, Alpine, Homebrew (Apple silicon,
// Intel, Linux), Postgres.app, a build from source.
var packagePlaces = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/usr/lib/postgresql*/bin",
	"/usr/libexec/postgresql*",
	"/opt/homebrew/opt/postgresql*/bin",
	"/usr/local/opt/postgresql*/bin",
	"/home/linuxbrew/.linuxbrew/opt/postgresql*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
	"/usr/bin",
	"/usr/local/bin",
	"/usr/local/pgsql/bin",
}

func (m machine) find() (string, error) {
	if dir := m.getenv(EnvBinDir); dir != "" {
		if !hasServer(dir) {
			return "", m.noServer(fmt.Sprintf("%s=%s, which holds no postgres and initdb", EnvBinDir, dir))
		}
		return dir, nil
	}
	if path, err := m.lookPath("postgres"); err == nil {
		// The link is followed because initdb may stand beside its target only.
		if real, err := filepath.EvalSymlinks(path); err == nil && hasServer(filepath.Dir(real)) {
			return filepath.Dir(real), nil
		}
	}
	// pg_config belongs to the client's development files: where it is
	// installed, the server may not be.
	if dir, err := m.pgConfig(); err == nil && hasServer(dir) {
		return dir, nil
	}
	for _, pattern := range packagePlaces {
		dirs, err := filepath.Glob(m.root + pattern)
		if err != nil {
			return "", fmt.Errorf("look for PostgreSQL in %s: %w", pattern, err)
		}
		slices.SortFunc(dirs, func(a, b string) int { return cmp.Compare(majorIn(b), majorIn(a)) })
		for _, dir := range dirs {
			if hasServer(dir) {
				return dir, nil
			}
		}
	}
	return "", m.noServer("PATH, pg_config and the places that packages install to")
}

// majorIn reads the version out of a path such as /usr/lib/postgresql/15/bin
// or /opt/homebrew/opt/postgresql@17/bin; 0 if it has none.
func majorIn(dir string) float64 {
	var best float64
	for part := range strings.SplitSeq(dir, "/") {
		digits := strings.TrimLeft(part, "abcdefghijklmnopqrstuvwxyz@-_")
		if v, err := strconv.ParseFloat(digits, 64); err == nil {
			best = max(best, v)
		}
	}
	return best
}

func hasServer(dir string) bool {
	return isExecutable(filepath.Join(dir, "postgres")) && isExecutable(filepath.Join(dir, "initdb"))
}

func isExecutable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}
