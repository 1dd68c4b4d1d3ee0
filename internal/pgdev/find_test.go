package pgdev

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// install puts the named programs into dir.
func install(t *testing.T, dir string, programs ...string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, p := range programs {
		if err := os.WriteFile(filepath.Join(dir, p), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// bareMachine has no PostgreSQL and the given programs on its PATH.
func bareMachine(t *testing.T, programs map[string]string) machine {
	return machine{
		root:   t.TempDir(),
		getenv: func(string) string { return "" },
		lookPath: func(name string) (string, error) {
			if path, ok := programs[name]; ok {
				return path, nil
			}
			return "", fs.ErrNotExist
		},
		pgConfig: func() (string, error) { return "", fs.ErrNotExist },
		uid:      1000,
	}
}

func mustFind(t *testing.T, m machine, want string) {
	t.Helper()
	got, err := m.find()
	if err != nil {
		t.Fatal(err)
	}
	if got != want {
		t.Fatalf("found %s, want %s", got, want)
	}
}

func TestFindTakesTheEnvironmentsWordAlone(t *testing.T) {
	m := bareMachine(t, map[string]string{"apt-get": "/usr/bin/apt-get"})
	install(t, m.root+"/usr/lib/postgresql/15/bin", "postgres", "initdb")
	dir := install(t, t.TempDir(), "postgres", "initdb")
	m.getenv = func(name string) string { return map[string]string{EnvBinDir: dir}[name] }
	mustFind(t, m, dir)

	empty := t.TempDir()
	m.getenv = func(name string) string { return map[string]string{EnvBinDir: empty}[name] }
	_, err := m.find()
	if !errors.Is(err, ErrNoServer) || !strings.Contains(err.Error(), EnvBinDir+"="+empty) {
		t.Fatalf("a wrong %s is passed over: %v", EnvBinDir, err)
	}
}

func TestFindFollowsTheLinkOnPath(t *testing.T) {
	m := bareMachine(t, nil)
	real := install(t, filepath.Join(m.root, "real"), "postgres", "initdb")
	link := filepath.Join(install(t, filepath.Join(m.root, "onpath")), "postgres")
	if err := os.Symlink(filepath.Join(real, "postgres"), link); err != nil {
		t.Fatal(err)
	}
	m.lookPath = func(string) (string, error) { return link, nil }
	want, err := filepath.EvalSymlinks(real)
	if err != nil {
		t.Fatal(err)
	}
	mustFind(t, m, want)
}

func TestFindAsksPgConfigButWantsAServerThere(t *testing.T) {
	m := bareMachine(t, nil)
	debian := install(t, m.root+"/usr/lib/postgresql/15/bin", "postgres", "initdb")
	clientOnly := install(t, t.TempDir(), "psql")
	m.pgConfig = func() (string, error) { return clientOnly, nil }
	mustFind(t, m, debian)

	built := install(t, t.TempDir(), "postgres", "initdb")
	m.pgConfig = func() (string, error) { return built, nil }
	mustFind(t, m, built)
}

func TestFindPrefersTheNewestPackage(t *testing.T) {
	for _, tc := range []struct {
		name, want string
		others     []string
	}{
		{"debian", "/usr/lib/postgresql/17/bin", []string{"/usr/lib/postgresql/9.6/bin", "/usr/lib/postgresql/15/bin"}},
		{"rpm", "/usr/pgsql-16/bin", []string{"/usr/pgsql-9.6/bin", "/usr/bin"}},
		{"alpine", "/usr/libexec/postgresql16", []string{"/usr/libexec/postgresql15"}},
		{"homebrew", "/opt/homebrew/opt/postgresql@17/bin", []string{"/opt/homebrew/opt/postgresql@9.6/bin", "/usr/local/opt/postgresql@18/bin"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := bareMachine(t, nil)
			for _, dir := range append(tc.others, tc.want) {
				install(t, m.root+dir, "postgres", "initdb")
			}
			// Newer, but a client only.
			install(t, m.root+"/usr/lib/postgresql/18/bin", "psql")
			mustFind(t, m, m.root+tc.want)
		})
	}
}

func TestNoServerSaysWhatToRun(t *testing.T) {
	for _, tc := range []struct {
		manager string
		uid     int
		want    string
	}{
		{"apt-get", 1000, "sudo apt-get install -y --no-install-recommends postgresql"},
		{"apt-get", 0, "apt-get install -y --no-install-recommends postgresql"},
		{"dnf", 1000, "sudo dnf install -y postgresql-server"},
		{"brew", 501, "brew install postgresql@17"},
		{"none", 1000, ""},
	} {
		m := bareMachine(t, map[string]string{tc.manager: "/usr/bin/" + tc.manager})
		m.uid = tc.uid
		_, err := m.find()
		var none *NoServerError
		if !errors.As(err, &none) || !errors.Is(err, ErrNoServer) {
			t.Fatalf("%s: %v is not ErrNoServer", tc.manager, err)
		}
		if none.Install != tc.want {
			t.Errorf("%s, uid %d: install with %q, want %q", tc.manager, tc.uid, none.Install, tc.want)
		}
		if msg := err.Error(); strings.Contains(msg, "\n") || (tc.want != "" && !strings.HasSuffix(msg, tc.want)) {
			t.Errorf("not one line that ends in the command: %q", msg)
		}
	}
}
