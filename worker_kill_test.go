package keyline_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	osexec "os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
)

// The variables that turn this test binary into a worker process.
const (
	childURL  = "KEYLINE_TEST_CHILD_URL"
	childMode = "KEYLINE_TEST_CHILD_MODE"
)

// The modes of a child: what its handler does with seq 1 of record "victim".
const (
	modeBlock = "block" // never returns
	modeExit  = "exit"  // ends the process
)

// shortLease is for tests that wait for the end of a lease, or for what a renewal brings, every third of it. Shorter, a worker on a crowded
// machine loses it by itself.
const shortLease = 3 * time.Second

// child runs a worker with the consumer "c", which says on stdout what it
// begins and ends, until it is killed.
func child(url, mode string) int {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	w, err := keyline.NewWorker(pool, keyline.Config{Name: "child", Lease: shortLease}, keyline.Consumer{
		Name: "c", Types: []string{"*"}, Effect: keyline.None(),
		Handle: func(_ context.Context, d *keyline.Delivery) error {
			fmt.Printf("begin %s %d %d\n", d.Key.Record, d.Seq, d.Attempt)
			if d.Key.Record == "victim" && d.Seq == 1 {
				if mode == modeExit {
					os.Exit(3)
				}
				select {}
			}
			fmt.Printf("end %s %d %d\n", d.Key.Record, d.Seq, d.Attempt)
			return nil
		}})
	if err == nil {
		err = w.Run(ctx)
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// process is a child with the lines that it says.
type process struct {
	cmd   *osexec.Cmd
	lines chan string
}

func startChild(t *testing.T, db *testdb.DB, mode string) *process {
	t.Helper()
	cmd := osexec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childURL+"="+db.URL, childMode+"="+mode)
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: cmd, lines: make(chan string, 1000)}
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(p.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may be gone
		<-read
		_ = cmd.Wait()
	})
	return p
}

// says waits until the child says a line; false where it ended first.
func (p *process) says(t *testing.T, line string) bool {
	t.Helper()
	limit := time.After(60 * time.Second)
	for {
		select {
		case got, ok := <-p.lines:
			if !ok {
				return false
			}
			if strings.HasPrefix(got, line) {
				return true
			}
		case <-limit:
			t.Fatalf("the child never says %q", line)
		}
	}
}

func TestKilledWorkersRecordsGoOnInOrderElsewhere(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	p := startChild(t, db, modeBlock)
	testdb.Eventually(t, func() bool { return scalar[int](t, db.Pool(), "select count(*) from keyline.consumers") == 1 }, "the child registers")
	appendN(t, db, "victim", 4)
	if !p.says(t, "begin victim 1 1") {
		t.Fatal("the child ended by itself")
	}
	if err := p.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// An idle survivor, with the events queued behind the one that was running.
	startWorker(t, db, keyline.Config{Lease: shortLease}, recording(s, "c"))
	s.wait(t, 4)
	settled(t, db)
	got := s.of("c", "victim")
	for i, d := range got {
		if d.Seq != int64(i+1) {
			t.Fatalf("delivery %d is seq %d", i, d.Seq)
		}
	}
	if !got[0].Redelivered {
		t.Error("what the killed one had begun is not marked as redelivered")
	}
	if n := scalar[int](t, db.Pool(), "select count(*) from keyline.workers where status = 'lost'"); n != 1 {
		t.Errorf("%d workers are lost", n)
	}
}

func TestFrozenWorkerIsFencedAndComesBackAsANewOne(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	p := startChild(t, db, "")
	testdb.Eventually(t, func() bool { return scalar[int](t, db.Pool(), "select count(*) from keyline.consumers") == 1 }, "the child registers")
	appendN(t, db, "thing:1", 1)
	if !p.says(t, "end thing:1 1") {
		t.Fatal("the child ended by itself")
	}
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	w := startWorker(t, db, keyline.Config{Lease: shortLease}, recording(s, "c"))
	testdb.Eventually(t, func() bool {
		return scalar[int](t, db.Pool(), "select count(*) from keyline.workers where name = 'child' and status = 'lost'") == 1
	}, "the frozen one is marked lost")
	appendN(t, db, "thing:1", 2)
	s.wait(t, 2) // neither appends nor the other worker wait for it
	stop(t, w)
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	testdb.Eventually(t, func() bool {
		return scalar[int](t, db.Pool(), "select count(*) from keyline.workers where name = 'child' and status = 'live'") == 1
	}, "it joins as a new incarnation")
	appendN(t, db, "thing:1", 1)
	if !p.says(t, "end thing:1 4") {
		t.Fatal("the child ended by itself")
	}
}

func TestHandlerThatEndsTheProcessIsFoundAndDeadLettered(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	// A survivor without that consumer notices each loss; its own consumer keeps getting events of the same record.
	startWorker(t, db, keyline.Config{Lease: shortLease}, recording(s, "other"))
	p := startChild(t, db, modeExit)
	testdb.Eventually(t, func() bool { return scalar[int](t, db.Pool(), "select count(*) from keyline.consumers") == 2 }, "the child registers")
	appendN(t, db, "victim", 2)
	appendN(t, db, "neighbour", 2)
	for runs := 1; !p.says(t, "end victim 2"); runs++ {
		if runs > 8 {
			t.Fatal("the event goes on killing")
		}
		appendN(t, db, "victim", 1)
		p = startChild(t, db, modeExit)
	}
	var reason, code string
	var seq int64
	if err := db.Pool().QueryRow(t.Context(), "select reason, error_code, seq from keyline.dead_letters").Scan(&reason, &code, &seq); err != nil {
		t.Fatal(err)
	}
	if runbook := string(must(os.ReadFile("docs/operations.md"))(t)); !strings.Contains(runbook, "`keyline dead-letters list --code "+code+"`") {
		t.Errorf("the runbook does not say how to find what has the code %s", code)
	}
	if reason != "crash_budget" || seq != 1 {
		t.Fatalf("dead letter: %s for seq %d", reason, seq)
	}
	testdb.Eventually(t, func() bool { return scalar[int](t, db.Pool(), "select count(*) from keyline.mailboxes") == 0 }, "all settles")
	if n := scalar[int](t, db.Pool(), "select count(*) from keyline.dead_letters"); n != 1 {
		t.Fatalf("%d dead letters: neighbours were harmed", n)
	}
}
