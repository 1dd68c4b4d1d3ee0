//go:build unix

package pgdev

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

// envOwner makes this test program the owner of a server and nothing else.
const envOwner = "PGDEV_TEST_OWNER"

func TestMain(m *testing.M) {
	if os.Getenv(envOwner) != "" {
		if err := own(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// owned is what an owner tells about its server.
type owned struct {
	URL             string
	PID, Guard      int
	Dir, Owner, Log string
}

// own starts a server, says so, and waits for its standard input to end.
func own() error {
	s, err := Start(context.Background(), Options{})
	if err != nil {
		return err
	}
	o := owned{URL: s.URL("postgres"), PID: s.PID(), Guard: s.guard.cmd.Process.Pid, Dir: s.place.socket, Owner: fmt.Sprint(os.Geteuid())}
	if err := json.NewEncoder(os.Stdout).Encode(o); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	return s.Stop()
}

type owner struct {
	owned
	cmd   *exec.Cmd
	stdin io.Closer
}

// startOwner runs own in a process of its own, under the given account.
func startOwner(t *testing.T, program string, cred *syscall.Credential) owner {
	t.Helper()
	needBinaries(t)
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), envOwner+"=1")
	cmd.Dir = "/"
	cmd.Stderr = t.Output()
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: cred}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	o := owner{cmd: cmd, stdin: stdin}
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err != nil {
		t.Fatalf("the owner of a server told nothing: %v", err)
	}
	if err := json.Unmarshal(line, &o.owned); err != nil {
		t.Fatal(err)
	}
	return o
}

// gone reports that a process that is not our child has ended. One that its
// new parent has not waited for is gone too.
func gone(pid int) bool {
	if runtime.GOOS == "linux" {
		content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			return true
		}
		var state byte
		for i := len(content) - 1; i >= 0; i-- {
			if content[i] == ')' {
				state = content[min(i+2, len(content)-1)]
				break
			}
		}
		return state == 'Z'
	}
	return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}

func self(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return exe
}

func TestServerDiesWithItsParent(t *testing.T) {
	o := startOwner(t, self(t), nil)
	if got := query(t, o.URL, "select 1::text"); got != "1" {
		t.Fatal(got)
	}
	if err := o.cmd.Process.Kill(); err != nil { // SIGKILL: no chance to clean up
		t.Fatal(err)
	}
	_ = o.cmd.Wait()
	await(t, "the server to end", func() bool { return gone(o.PID) })
	await(t, "its directory to go", func() bool { return !exists(o.Dir) })
	await(t, "the guard to end", func() bool { return gone(o.Guard) })
}

func TestServerDiesWithItsParentWithoutAGuard(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has Pdeathsig; elsewhere the guard is all there is")
	}
	o := startOwner(t, self(t), nil)
	t.Cleanup(func() { _ = os.RemoveAll(o.Dir) })
	if err := syscall.Kill(o.Guard, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := o.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = o.cmd.Wait()
	await(t, "the server to end", func() bool { return gone(o.PID) })
}

func TestGuardAloneEndsTheServer(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "with 'quotes' and spaces")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	g, err := startGuard([]string{dir})
	if err != nil {
		t.Fatal(err)
	}
	victim := exec.Command("/bin/sh", "-c", "trap 'exit 7' INT; while :; do sleep 0.05; done")
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	g.watch(victim.Process.Pid)
	if err := g.w.Close(); err != nil { // as when we end
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := victim.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 7 && exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGINT {
		t.Errorf("the victim ended with %v, want to see SIGINT", err)
	}
	if err := g.cmd.Wait(); err != nil {
		t.Error(err)
	}
	if exists(dir) {
		t.Error("the directory is still there")
	}
}

func TestReleasedGuardTouchesNothing(t *testing.T) {
	dir := t.TempDir()
	g, err := startGuard([]string{dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.release(); err != nil {
		t.Fatal(err)
	}
	if !exists(dir) {
		t.Error("the directory is gone")
	}
}

func TestServerRunsForAnOrdinaryUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("every other test shows it")
	}
	nobody, err := unprivileged()
	if err != nil {
		t.Fatal(err)
	}
	// go test keeps its binaries where only root may look.
	program := filepath.Join(shortTempDir(t), "owner")
	content, err := os.ReadFile(self(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, content, 0o755); err != nil {
		t.Fatal(err)
	}
	o := startOwner(t, program, nobody.credential)
	if o.Owner == "0" {
		t.Fatal("the owner is root after all")
	}
	if got := query(t, o.URL, "select 1::text"); got != "1" {
		t.Fatal(got)
	}
	if err := o.stdin.Close(); err != nil {
		t.Fatal(err)
	}
	if err := o.cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if !gone(o.PID) || exists(o.Dir) {
		t.Error("the server or its directory is still there")
	}
}
