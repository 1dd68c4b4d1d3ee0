//go:build unix

package pgdev

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/freeport"
)

func start(t *testing.T, o Options) *Server {
	t.Helper()
	needBinaries(t)
	s, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// needBinaries skips the test on a machine whose tests are to use the server of
// DATABASE_URL, and which has no other.
func needBinaries(t *testing.T) {
	t.Helper()
	if _, err := Find(); errors.Is(err, ErrNoServer) && os.Getenv("DATABASE_URL") != "" {
		t.Skip(err)
	}
}

func exec1(t *testing.T, url, sql string) {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.WithoutCancel(t.Context()))
	if _, err := c.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

func query(t *testing.T, url, sql string) string {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.WithoutCancel(t.Context()))
	var v string
	if err := c.QueryRow(t.Context(), sql).Scan(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

// await polls for something that sends no signal: the end of a process that is
// not our child.
func await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for !cond() {
		if err := clock.Sleep(ctx, clock.Real(), 5*time.Millisecond); err != nil {
			t.Fatalf("waited in vain for: %s", what)
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

func TestServerListensOnItsSocketAlone(t *testing.T) {
	// Whatever the environment says about another server.
	t.Setenv("PGHOST", "db.example.invalid")
	t.Setenv("PGPORT", "1")
	t.Setenv("PGUSER", "somebody")
	t.Setenv("PGDATA", "/nonexistent")
	s := start(t, Options{Settings: map[string]string{"max_connections": "17"}})
	url := s.URL("postgres")
	for setting, want := range map[string]string{
		"listen_addresses": "", "fsync": "off", "synchronous_commit": "off", "full_page_writes": "off",
		"shared_buffers": "256MB", "autovacuum": "on", "max_connections": "17", "server_encoding": "UTF8",
	} {
		if got := query(t, url, "select current_setting('"+setting+"')"); got != want {
			t.Errorf("%s = %q, want %q", setting, got, want)
		}
	}
	if s.TCPURL("postgres") != "" {
		t.Error("a URL for a port that nobody listens on")
	}
	if got := query(t, url, "select current_user"); got != superuser {
		t.Errorf("connected as %q", got)
	}
	if info, err := os.Stat(s.place.socket); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("others may enter the socket's directory: %v, %v", info.Mode(), err)
	}
}

func TestDurableServerKeepsItsGuarantees(t *testing.T) {
	s := start(t, Options{Durable: true})
	for _, setting := range []string{"fsync", "synchronous_commit", "full_page_writes"} {
		if got := query(t, s.URL("postgres"), "select current_setting('"+setting+"')"); got != "on" {
			t.Errorf("%s = %q", setting, got)
		}
	}
}

func TestStopLeavesNothingBehind(t *testing.T) {
	temp := shortTempDir(t)
	t.Setenv("TMPDIR", temp)
	s := start(t, Options{})
	pid := s.PID()
	if pid == 0 || !strings.HasPrefix(s.DataDir(), temp) {
		t.Fatalf("pid %d, data in %s, want it under %s", pid, s.DataDir(), temp)
	}
	for range 2 {
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d is still there: %v", pid, err)
	}
	if s.PID() != 0 {
		t.Errorf("PID() = %d after Stop", s.PID())
	}
	mustBeEmpty(t, temp)
	if err := s.Restart(t.Context()); err == nil {
		t.Error("restarted a server whose files are gone")
	}
}

func TestDirKeepsTheDataFromOneServerToTheNext(t *testing.T) {
	dir := filepath.Join(shortTempDir(t), "pg")
	s := start(t, Options{Dir: dir, TCP: true})
	exec1(t, s.URL("postgres"), "create table kept as select 42 as answer")
	if _, err := Start(t.Context(), Options{Dir: dir}); err == nil || !strings.Contains(err.Error(), "postmaster.pid") {
		t.Errorf("a second server on the same directory: %v", err)
	}
	if got := query(t, s.URL("postgres"), "select answer::text from kept"); got != "42" {
		t.Errorf("after the second one was refused: %s", got)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	next := start(t, Options{Dir: dir, TCP: true})
	for _, url := range []string{next.URL("postgres"), next.TCPURL("postgres")} {
		if got := query(t, url, "select answer::text from kept"); got != "42" {
			t.Errorf("through %s: %s", url, got)
		}
	}
}

func TestRestartKeepsDataAndURL(t *testing.T) {
	s := start(t, Options{})
	url, pid := s.URL("postgres"), s.PID()
	exec1(t, url, "create table kept as select 42 as answer")
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s.PID() == pid || s.URL("postgres") != url {
		t.Errorf("pid %d → %d, url %s → %s", pid, s.PID(), url, s.URL("postgres"))
	}
	if got := query(t, url, "select answer::text from kept"); got != "42" {
		t.Errorf("after the restart: %s", got)
	}
}

func TestKillIsACrashThatRestartRecoversFrom(t *testing.T) {
	s := start(t, Options{Durable: true})
	url := s.URL("postgres")
	exec1(t, url, "create table kept as select 42 as answer")
	open, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close(context.WithoutCancel(t.Context()))
	if _, err := open.Exec(t.Context(), "begin; insert into kept values (43)"); err != nil {
		t.Fatal(err)
	}
	s.Kill()
	if s.PID() != 0 {
		t.Errorf("PID() = %d after Kill", s.PID())
	}
	if _, err := open.Exec(t.Context(), "commit"); err == nil {
		t.Error("a killed server committed")
	}
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := query(t, url, "select string_agg(answer::text, ',') from kept"); got != "42" {
		t.Errorf("after recovery: %s", got)
	}
	log, err := os.ReadFile(s.LogFile())
	if err != nil || !strings.Contains(string(log), "not properly shut down") {
		t.Errorf("that was no crash (%v):\n%s", err, log)
	}
}

// Promise: a crash leaves no process behind that could keep the next server from starting, also none that the killed server
// had only just started. (Seen: a restart that found the shared memory in use for a minute.)
func TestKillLeavesNoBackendBehind(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("looks at /proc")
	}
	s := start(t, Options{})
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(sleep)
	if err != nil {
		t.Fatal(err)
	}
	likeOne := filepath.Join(t.TempDir(), "postgres") // in the data directory, but no child of the server
	if err := os.WriteFile(likeOne, program, 0o755); err != nil {
		t.Fatal(err)
	}
	late := exec.CommandContext(t.Context(), likeOne, "600")
	late.Dir = s.DataDir()
	if err := late.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- late.Wait() }()
	dir, err := filepath.EvalSymlinks(s.DataDir())
	if err != nil {
		t.Fatal(err)
	}
	if got := serversIn(dir); len(got) < 3 {
		t.Fatalf("%v is all that a running server has", got)
	}
	s.Kill()
	if got := serversIn(dir); len(got) != 0 {
		t.Errorf("%v outlived it", got)
	}
	if err := <-ended; err == nil {
		t.Error("it ended by itself")
	}
	if err := s.Restart(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestStopAfterKillFreesSharedMemory(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("looks at /proc/sysvipc")
	}
	s := start(t, Options{})
	pidFile, err := os.ReadFile(filepath.Join(s.DataDir(), "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	// Its seventh line is the key and the id of the segment.
	segment := strings.Fields(strings.Split(string(pidFile), "\n")[6])[1]
	if !segmentExists(t, segment) {
		t.Fatalf("a running server has no segment %s", segment)
	}
	s.Kill()
	if !segmentExists(t, segment) {
		t.Fatalf("segment %s went with the crash: there is nothing to free", segment)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if segmentExists(t, segment) {
		t.Errorf("segment %s left behind", segment)
	}
	if exists(s.place.socket) {
		t.Error("temporary directory left behind")
	}
}

// segmentExists reports whether the machine has a System V shared memory
// segment of this id.
func segmentExists(t *testing.T, id string) bool {
	t.Helper()
	content, err := os.ReadFile("/proc/sysvipc/shm")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(content)) {
		if f := strings.Fields(line); len(f) > 1 && f[1] == id {
			return true
		}
	}
	return false
}

func TestTCPIsOnLoopbackAndWantsThePassword(t *testing.T) {
	s := start(t, Options{TCP: true})
	url := s.TCPURL("postgres")
	if got := query(t, url, "select current_setting('listen_addresses')"); got != "127.0.0.1" {
		t.Errorf("listens on %s", got)
	}
	if got := query(t, s.URL("postgres"), "select 1::text"); got != "1" {
		t.Errorf("the socket beside it: %s", got)
	}
	wrong := strings.Replace(url, s.secret, "guess", 1)
	if wrong == url {
		t.Fatalf("no password in %s", url)
	}
	c, err := pgx.Connect(t.Context(), wrong)
	if err == nil {
		_ = c.Close(t.Context())
		t.Fatal("let in without the password")
	}
	var state interface{ SQLState() string }
	if !errors.As(err, &state) || state.SQLState() != "28P01" {
		t.Fatalf("refused for another reason: %v", err)
	}
}

func TestTCPPortIsTheOneAskedFor(t *testing.T) {
	needBinaries(t)
	port, err := freeport.Choose(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", freeport.Addr(port))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Start(t.Context(), Options{TCP: true, Port: port}); err == nil || !strings.Contains(err.Error(), "Address already in use") {
		t.Errorf("on a port that is taken: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	s := start(t, Options{TCP: true, Port: port})
	if got := query(t, s.TCPURL("postgres"), "select current_setting('port')"); got != fmt.Sprint(port) {
		t.Errorf("port %s, want %d", got, port)
	}
}

func TestFailedStartSaysWhyAndLeavesNothing(t *testing.T) {
	needBinaries(t)
	temp := shortTempDir(t)
	t.Setenv("TMPDIR", temp)
	_, err := Start(t.Context(), Options{Settings: map[string]string{"shared_buffers": "nonsense"}})
	if err == nil || !strings.Contains(err.Error(), `invalid value for parameter "shared_buffers": "nonsense"`) {
		t.Errorf("the reason is not in the error: %v", err)
	}
	mustBeEmpty(t, temp)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Start(ctx, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("under a done context: %v", err)
	}
	mustBeEmpty(t, temp)
}

func TestStartWithoutBinariesIsErrNoServer(t *testing.T) {
	t.Setenv(EnvBinDir, t.TempDir())
	if _, err := Start(t.Context(), Options{}); !errors.Is(err, ErrNoServer) {
		t.Fatal(err)
	}
}

func TestRootIsToldWhichDirectoryTheServerCannotEnter(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root runs the server as somebody else")
	}
	needBinaries(t)
	closed := filepath.Join(shortTempDir(t), "closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := Start(t.Context(), Options{Dir: filepath.Join(closed, "pg")})
	if err == nil || !strings.Contains(err.Error(), "cannot enter "+closed) {
		t.Fatal(err)
	}
}

// shortTempDir is a temporary directory that any account may enter and whose
// path leaves room for that of a socket.
func shortTempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "pgdev")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func mustBeEmpty(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		t.Errorf("left behind: %s", filepath.Join(dir, e.Name()))
	}
}
