//go:build unix

package testdb

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/pgdev"
)

// envMember makes this test program a member of the run of a process, which it
// names, and nothing else.
const envMember = "TESTDB_TEST_MEMBER"

func TestMain(m *testing.M) {
	// A member's keeper is a keeper.
	if os.Getenv(envMember) != "" && os.Getenv(envKeeper) == "" {
		if err := beMember(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(Main(m))
}

// beMember joins the run, tells the URL, and lives until its input ends.
func beMember() error {
	owner, err := strconv.Atoi(os.Getenv(envMember))
	if err != nil {
		return err
	}
	url, membership, err := joinRun(owner)
	if err != nil {
		return err
	}
	defer membership.Close()
	fmt.Println(url)
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

type member struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.Closer
	out   *bufio.Reader
}

func startMember(t *testing.T, owner int) member {
	t.Helper()
	if _, err := pgdev.Find(); errors.Is(err, pgdev.ErrNoServer) && os.Getenv("DATABASE_URL") != "" {
		t.Skip(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), envMember+"="+strconv.Itoa(owner))
	cmd.Stderr = t.Output()
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
	return member{t, cmd, stdin, bufio.NewReader(stdout)}
}

func (m member) url() string {
	m.t.Helper()
	line, err := m.out.ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "postgres://") {
		m.t.Fatalf("a member said %q, %v", line, err)
	}
	return strings.TrimSpace(line)
}

func (m member) leave() {
	m.t.Helper()
	if err := errors.Join(m.stdin.Close(), m.cmd.Wait()); err != nil {
		m.t.Fatal(err)
	}
}

// standIn is a process in the place of `go test`.
func standIn(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", "read -r _")
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

// answers reports whether a server of this URL takes connections, and which it
// is.
func answers(url string) (pid string, ok bool) {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return "", false
	}
	defer conn.Close(ctx)
	err = conn.QueryRow(ctx, "select split_part(pg_read_file('postmaster.pid'), e'\\n', 1)").Scan(&pid)
	return pid, err == nil
}

func TestAllProcessesOfARunShareOneServerThatGoesWithTheRun(t *testing.T) {
	t.Parallel()
	owner := standIn(t)
	var members []member
	for range 4 { // all at once: one of them starts the keeper
		members = append(members, startMember(t, owner.Process.Pid))
	}
	url := members[0].url()
	for _, m := range members[1:] {
		if got := m.url(); got != url {
			t.Fatalf("two servers: %s and %s", got, url)
		}
	}
	other := startMember(t, standIn(t).Process.Pid)
	if other.url() == url {
		t.Error("two runs share a server")
	}
	for _, m := range members { // among them the one that started the keeper
		m.leave()
	}
	if _, ok := answers(url); !ok {
		t.Error("the server went with a member")
	}
	late := startMember(t, owner.Process.Pid)
	if got := late.url(); got != url {
		t.Errorf("a package that comes late gets %s, want %s", got, url)
	}

	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = owner.Wait()
	Eventually(t, func() bool { _, ok := answers(url); return !ok }, "the server to go with its run")
	Eventually(t, func() bool {
		_, err := os.Stat(runDir(owner.Process.Pid))
		return errors.Is(err, os.ErrNotExist)
	}, "the run's files to go")
}

func TestARunWhoseKeeperWasKilledGetsAnother(t *testing.T) {
	t.Parallel()
	owner := standIn(t)
	first := startMember(t, owner.Process.Pid)
	url := first.url()
	r := run{runDir(owner.Process.Pid)}
	k, err := r.read()
	if err != nil || k == nil {
		t.Fatalf("no keeper: %v", err)
	}
	var keeperPID int
	if _, err := fmt.Sscanf(filepath.Base(k.Users), "users-%d.lock", &keeperPID); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(keeperPID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	Eventually(t, func() bool { _, ok := answers(url); return !ok }, "the server to go with its keeper")
	second := startMember(t, owner.Process.Pid)
	again := second.url()
	if _, ok := answers(again); !ok || again == url {
		t.Errorf("the new server is %s (answers: %v), the old one was %s", again, ok, url)
	}
}

func TestAKeeperWithoutUsersEnds(t *testing.T) {
	t.Parallel()
	r := run{t.TempDir()}
	k := kept{Users: filepath.Join(r.dir, "users-1.lock")}
	for _, path := range []string{r.file(), k.Users, aliveLock(k.Users)} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	user, err := lockFile(k.Users, syscall.LOCK_SH)
	if err != nil {
		t.Fatal(err)
	}
	clk := clock.NewFake(time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC))
	done := make(chan error, 1)
	go func() { done <- r.serve(clk, k, func() bool { return false }) }()
	if err := clk.BlockUntil(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	for range 3 * int(linger/look) {
		clk.Advance(look)
		select {
		case err := <-done:
			t.Fatalf("ended (%v) although somebody uses it", err)
		default:
		}
	}
	if err := user.Close(); err != nil {
		t.Fatal(err)
	}
	// Less than the time to linger since the last use.
	clk.Advance(look)
	select {
	case err := <-done:
		t.Fatalf("ended (%v) without lingering", err)
	default:
	}
	Eventually(t, func() bool {
		clk.Advance(look)
		return len(done) == 1
	}, "the keeper to end")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(r.dir + "/*"); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestARunsDirectoryOfSomebodyElseIsRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := (run{dir}).make(); err == nil {
		t.Error("took a directory that everybody may write to")
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	if err := (run{link}).make(); err == nil {
		t.Error("followed a link")
	}
}
