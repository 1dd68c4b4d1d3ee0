//go:build unix

package pgdev

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const script = "../../scripts/ensure-postgres"

// The script runs before there is a Go build to ask, so it has the places and
// the commands too; the two lists must be one.
func TestTheScriptLooksAndInstallsAsThisPackageDoes(t *testing.T) {
	content, err := os.ReadFile(script)
	if err != nil {
		t.Fatal(err)
	}
	for _, in := range installers {
		if !strings.Contains(string(content), `"`+in.command+`"`) {
			t.Errorf("the script does not install with %q", in.command)
		}
	}
	from := 0
	for _, place := range packagePlaces {
		line := `"$root"` + place
		at := strings.Index(string(content)[from:], line)
		if at < 0 {
			t.Errorf("the script does not look in %s, in this order", place)
			continue
		}
		from += at + len(line)
	}
}

// scriptRun is one run of the script on a made-up machine.
type scriptRun struct {
	root, path string
	env        []string
}

func newScriptRun(t *testing.T) scriptRun {
	t.Helper()
	r := scriptRun{root: t.TempDir(), path: t.TempDir()}
	for _, tool := range []string{"bash", "dirname", "readlink", "env"} {
		real, err := exec.LookPath(tool)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(real, filepath.Join(r.path, tool)); err != nil {
			t.Fatal(err)
		}
	}
	r.tool(t, "id", "echo 1000")
	return r
}

// tool puts a program on the machine's PATH.
func (r scriptRun) tool(t *testing.T, name, body string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(r.path, name), []byte("#!/bin/sh\n"+body+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

func (r scriptRun) run(t *testing.T, args ...string) (ok bool, said string) {
	t.Helper()
	cmd := exec.Command("bash", append([]string{script}, args...)...)
	cmd.Env = append([]string{"PATH=" + r.path, "ENSURE_POSTGRES_ROOT=" + r.root}, r.env...)
	out, err := cmd.CombinedOutput()
	return err == nil, string(out)
}

// aptGet is a package manager that installs what it is asked for, and keeps
// its arguments.
func (r scriptRun) aptGet(t *testing.T) (log string) {
	t.Helper()
	log = filepath.Join(r.path, "apt-get.log")
	bin := r.root + "/usr/lib/postgresql/15/bin"
	r.tool(t, "apt-get", `echo "$@" >>`+log+`
[ "$1" = install ] || exit 0
PATH=/usr/bin:/bin
mkdir -p `+bin+`
printf '#!/bin/sh\n' >`+bin+`/postgres; cp `+bin+`/postgres `+bin+`/initdb
chmod +x `+bin+`/*`)
	return log
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(content)
}

func TestScriptLeavesAMachineWithAServerAlone(t *testing.T) {
	r := newScriptRun(t)
	log := r.aptGet(t)
	dir := install(t, r.root+"/usr/lib/postgresql/15/bin", "postgres", "initdb")
	if ok, said := r.run(t); !ok || !strings.Contains(said, dir) {
		t.Errorf("ok %v: %s", ok, said)
	}
	if got := read(t, log); got != "" {
		t.Errorf("ran apt-get %s", got)
	}
}

func TestScriptNeedsNoServerBesideDatabaseURL(t *testing.T) {
	r := newScriptRun(t)
	r.env = []string{"DATABASE_URL=postgres://db.example.invalid/x"}
	if ok, said := r.run(t); !ok {
		t.Error(said)
	}
}

func TestScriptDoesNotInstallOverAWrongBinDir(t *testing.T) {
	r := newScriptRun(t)
	log := r.aptGet(t)
	r.tool(t, "id", "echo 0")
	r.env = []string{EnvBinDir + "=" + t.TempDir()}
	if ok, said := r.run(t); ok || !strings.Contains(said, EnvBinDir) {
		t.Errorf("ok %v: %s", ok, said)
	}
	if got := read(t, log); got != "" {
		t.Errorf("ran apt-get %s", got)
	}
}

func TestScriptInstallsAsRoot(t *testing.T) {
	r := newScriptRun(t)
	log := r.aptGet(t)
	r.tool(t, "id", "echo 0")
	ok, said := r.run(t)
	if !ok || !strings.Contains(said, "No PostgreSQL server found on this machine") {
		t.Errorf("ok %v: %s", ok, said)
	}
	if got, want := read(t, log), "update -qq\ninstall -y --no-install-recommends postgresql\n"; got != want {
		t.Errorf("ran apt-get %q, want %q", got, want)
	}
}

func TestScriptInstallsThroughSudoThatAsksNothing(t *testing.T) {
	r := newScriptRun(t)
	log := r.aptGet(t)
	r.tool(t, "sudo", `[ "$1" = -n ] || exit 1; shift; [ "$1" = true ] && exit 0; exec "$@"`)
	if ok, said := r.run(t); !ok {
		t.Error(said)
	}
	if got := read(t, log); !strings.Contains(got, "install -y") {
		t.Errorf("ran apt-get %q", got)
	}
}

func TestScriptElseSaysTheOneLineToRun(t *testing.T) {
	for name, setUp := range map[string]func(scriptRun, *testing.T) []string{
		"no sudo": func(scriptRun, *testing.T) []string { return nil },
		"sudo wants a password": func(r scriptRun, t *testing.T) []string {
			r.tool(t, "sudo", "exit 1")
			return nil
		},
		"only checking": func(r scriptRun, t *testing.T) []string {
			r.tool(t, "sudo", "exit 0")
			return []string{"--check"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newScriptRun(t)
			log := r.aptGet(t)
			args := setUp(r, t)
			ok, said := r.run(t, args...)
			if ok || !strings.HasSuffix(said, "\n  sudo apt-get install -y --no-install-recommends postgresql\n") {
				t.Errorf("ok %v: %s", ok, said)
			}
			if got := read(t, log); got != "" {
				t.Errorf("ran apt-get %s", got)
			}
		})
	}
}
