package demo

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keylinehq/keyline/examples/crm/crm"
	"github.com/keylinehq/keyline/examples/crm/fakeprovider"
	"github.com/keylinehq/keyline/examples/crm/recorder"
	"github.com/keylinehq/keyline/examples/crm/traffic"
	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/testdb"
)

// levelOne is the last commit whose binary carries schema version 1 alone.
const levelOne = "a07b70425665c8a1892184dc9957729bbd9151a6"

// envUpgrade is set by `make test/upgrade`: two programs are built, which takes minutes where nothing is cached.
const envUpgrade = "KEYLINE_TEST_UPGRADE"

// repository is the root of the checkout.
const repository = "../../.."

// build builds the program as of now.
func build(t *testing.T, dir string) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "keyline")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-o", bin, "./cmd/keyline")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return bin
}

// buildAt builds the program as of a commit.
func buildAt(t *testing.T, commit string) string {
	t.Helper()
	git := []string{"git", "-c", "safe.directory=*", "-C", repository}
	if err := exec.CommandContext(t.Context(), git[0], append(git[1:], "cat-file", "-e", commit+"^{commit}")...).Run(); err != nil {
		t.Skipf("NOT TESTED: commit %s is not in this checkout's history (%v). Fetch the whole of it: git fetch --unshallow", commit, err)
	}
	dir := t.TempDir()
	archive := filepath.Join(dir, "source.tar")
	for _, args := range [][]string{append(git, "archive", "--output", archive, commit), {"tar", "-xf", archive, "-C", dir}} {
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	return build(t, dir)
}

// upgrade is a database that two releases work on.
type upgrade struct {
	*testing.T
	*demo
	url           string
	before, after string // the programs
	old, young    *cluster
}

func newUpgrade(t *testing.T) *upgrade {
	db := testdb.NewEmpty(t)
	u := &upgrade{T: t, url: db.URL, before: buildAt(t, levelOne), after: build(t, repository)}
	u.demo = &demo{Config: Config{Clock: clock.Real()}, pool: db.Pool()}
	workers := func(program, prefix string) *cluster {
		c := &cluster{program: []string{program, "demo-worker", "--log-level", "error", "--log-format", "text"}, url: db.URL, prefix: prefix}
		t.Cleanup(func() {
			for _, p := range c.workers {
				p.expect()
				_ = p.cmd.Process.Kill()
				<-p.ended
			}
		})
		return c
	}
	u.old, u.young = workers(u.before, "old-"), workers(u.after, "new-")
	u.cluster = u.old // whose end settle looks at
	return u
}

// run runs a program on the database, and wants it to end well.
func (u *upgrade) run(program string, args ...string) string {
	u.Helper()
	return runOn(u.T, u.url, program, args...)
}

func runOn(t *testing.T, url, program string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append(os.Environ(), EnvDatabaseURL+"="+url)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", filepath.Base(filepath.Dir(program)), args, err, out)
	}
	return string(out)
}

// says runs a program and wants a word in what it says.
func (u *upgrade) says(word, program string, args ...string) {
	u.Helper()
	if out := u.run(program, args...); !strings.Contains(out, word) {
		u.Errorf("%v says %q, want %q", args, out, word)
	}
}

func (u *upgrade) join(c *cluster) *process {
	u.Helper()
	p, err := c.start()
	if err == nil {
		err = p.await(u.Context())
	}
	if err != nil {
		u.Fatal(err)
	}
	return p
}

// leave ends a worker as a deployment does.
func (u *upgrade) leave(p *process) {
	u.Helper()
	p.expect()
	_ = p.input.Close()
	<-p.ended
	if p.err != nil {
		u.Error(p.failure())
	}
}

func (u *upgrade) kill(c *cluster, p *process) {
	u.Helper()
	if err := c.kill(p); err != nil {
		u.Fatal(err)
	}
}

func (u *upgrade) number(sql string, args ...any) (n int64) {
	u.Helper()
	if err := u.pool.QueryRow(u.Context(), sql, args...).Scan(&n); err != nil {
		u.Fatal(err)
	}
	return n
}

// Deliveries to wait for: of workers that are alone, and of each that shares the work with others, who wake
// first and leave it little.
const (
	many = 150
	few  = 5
)

// delivers waits until the workers of each of these names have succeeded with some more deliveries.
func (u *upgrade) delivers(some int64, names ...string) {
	u.Helper()
	const done = "select count(*) from crm.delivered_log where mark = 'done' and worker like $1"
	before := map[string]int64{}
	for _, name := range names {
		before[name] = u.number(done, name+"%")
	}
	u.eventually(func() bool {
		if err := errorsOf(u.old, u.young); err != nil {
			u.Fatal(err)
		}
		for _, name := range names {
			if u.number(done, name+"%") < before[name]+some {
				return false
			}
		}
		return true
	}, fmt.Sprintf("%d deliveries by each of %v", some, names))
}

// eventually has the patience of a machine that is busy with something else.
func (u *upgrade) eventually(cond func() bool, what string) {
	u.Helper()
	ctx, cancel := context.WithTimeout(u.Context(), 4*time.Minute)
	defer cancel()
	if err := u.until(ctx, func(context.Context) (bool, error) { return cond(), nil }); err != nil {
		u.Fatalf("%s: %v", what, err)
	}
}

func errorsOf(clusters ...*cluster) error {
	for _, c := range clusters {
		if err := c.casualties(); err != nil {
			return err
		}
	}
	return nil
}

// judge wants all that was appended to be delivered, in order, repeated only with a
// reason, and both programs to find nothing wrong.
func (u *upgrade) judge(appended int64, programs ...string) {
	u.Helper()
	if !u.settle(u.Context(), settleLimit) {
		u.Fatalf("work is left: %v", errorsOf(u.old, u.young))
	}
	r, err := recorder.Check(u.Context(), u.pool)
	if err != nil {
		u.Fatal(err)
	}
	if !r.OK() || r.Appended != appended || r.Delivered+r.Dead != r.Expected || r.Dead > 2*poisoned {
		u.Errorf("appended %d: %+v", appended, r)
	}
	list, err := recorder.Unexplained(u.Context(), u.pool, nil)
	if err != nil {
		u.Fatal(err)
	}
	for _, repeat := range list {
		u.Errorf("repeated, and nothing had happened to its worker: %s", repeat)
	}
	for _, program := range programs {
		u.run(program, "verify")
	}
	u.Logf("appended %d, delivered %d of %d, repeated %d, dead %d", r.Appended, r.Delivered, r.Expected, r.Redelivered, r.Dead)
}

// version is the schema's.
func (u *upgrade) version() int64 { return u.number("select version from keyline.schema_version") }

// Promise: an upgrade with live workers of the release before, and back, without touching the schema.
func TestUpgradeAndRollBackWithLiveWorkers(t *testing.T) {
	if os.Getenv(envUpgrade) == "" {
		t.Skip("make test/upgrade runs it")
	}
	u := newUpgrade(t)
	u.run(u.before, "migrate", "up")
	service := u.application()
	first, second := u.join(u.old), u.join(u.old)
	ready, cancel := context.WithTimeout(t.Context(), settleLimit)
	defer cancel()
	if err := u.until(ready, func(ctx context.Context) (ok bool, err error) {
		return ok, u.pool.QueryRow(ctx, sqlConsumersReady).Scan(&ok)
	}); err != nil {
		t.Fatal(err)
	}
	playing, end := context.WithCancel(t.Context())
	defer end()
	type played struct {
		report traffic.Report
		err    error
	}
	over := make(chan played, 1)
	go func() {
		report, err := traffic.Run(playing, service, load(1))
		over <- played{report, err}
	}()
	u.delivers(many, "old-")

	u.migrate()
	u.delivers(many, "old-")
	u.says("still serves", u.before, "migrate", "status")
	u.says("nothing to do", u.before, "migrate", "up")
	u.kill(u.old, first)
	third := u.join(u.old) // the release before starts on the newer schema
	u.delivers(few, third.name)

	young := []*process{u.join(u.young), u.join(u.young)}
	u.delivers(few, "old-", "new-")
	u.kill(u.young, young[0])
	young[0] = u.join(u.young)
	u.leave(second)
	u.kill(u.old, third)
	u.delivers(many, "new-")

	back := u.join(u.old) // beside them, and then alone
	u.delivers(few, "old-", "new-")
	u.leave(young[0])
	u.kill(u.young, young[1])
	u.delivers(many, back.name)
	u.run(u.before, "verify")
	if u.version() == 1 {
		t.Error("the schema went back with the binaries")
	}

	end()
	p := <-over
	if p.err != nil {
		t.Fatal(p.err)
	}
	u.judge(p.report.Appended, u.before, u.after)
	u.leave(back)
	u.down(p.report.Appended, service)
}

// application installs the application, and returns it.
func (u *upgrade) application() *crm.Service {
	u.Helper()
	err := u.pool.AcquireFunc(u.Context(), func(c *pgxpool.Conn) error { return crm.Migrate(u.Context(), c.Conn()) })
	if err == nil {
		_, err = fakeprovider.New(u.Context(), u.pool)
	}
	if err == nil {
		err = recorder.Install(u.Context(), u.pool)
	}
	client, clientErr := crm.NewClient()
	if err == nil && clientErr == nil {
		err = client.RegisterEventTypes(u.Context(), u.pool)
	}
	if err != nil || clientErr != nil {
		u.Fatal(err, clientErr)
	}
	return crm.NewService(u.pool, client)
}

// migrate migrates while a transaction is in the way, which keeps the migration waiting, and nobody else.
func (u *upgrade) migrate() {
	u.Helper()
	tx, err := u.pool.Begin(u.Context())
	if err != nil {
		u.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(u.Context())) }()
	if _, err := tx.Exec(u.Context(), "lock table keyline.checkpoints in row exclusive mode"); err != nil {
		u.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		cmd := exec.CommandContext(u.Context(), u.after, "migrate", "up")
		cmd.Env = append(os.Environ(), EnvDatabaseURL+"="+u.url)
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		done <- err
	}()
	u.eventually(func() bool {
		return u.number("select count(*) from pg_locks where not granted and mode = 'AccessExclusiveLock' and relation = 'keyline.checkpoints'::regclass") > 0
	}, "the migration to wait for its lock")
	u.delivers(many, "old-")
	select {
	case err := <-done:
		u.Fatalf("the migration ended under a lock: %v", err)
	default:
	}
	if err := tx.Commit(u.Context()); err != nil {
		u.Fatal(err)
	}
	if err := <-done; err != nil {
		u.Fatal(err)
	}
}

// down takes the schema back, with nobody at work, and goes on with the release before.
func (u *upgrade) down(appended int64, service *crm.Service) {
	u.Helper()
	u.run(u.after, "migrate", "down", "--to", "1", "--yes")
	fresh := testdb.NewEmpty(u.T)
	runOn(u.T, fresh.URL, u.before, "migrate", "up")
	dump := func(db *pgx.Conn) string {
		text, err := testdb.DumpSchema(u.Context(), db, "keyline")
		if err != nil {
			u.Fatal(err)
		}
		return text
	}
	conn, err := u.pool.Acquire(u.Context())
	if err != nil {
		u.Fatal(err)
	}
	defer conn.Release()
	if dump(conn.Conn()) != dump(fresh.Connect()) {
		u.Error("the schema that was taken back is not that of the release before")
	}
	u.join(u.old)
	more := load(2)
	more.Operations, more.Pause = 200, time.Millisecond
	report, err := traffic.Run(u.Context(), service, more)
	if err != nil {
		u.Fatal(err)
	}
	u.judge(appended+report.Appended, u.before)
}
