package listener

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/internal/testdb"
)

func TestAppendWakesTheSentinelWithTheRecord(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	n := startNode(t, db, nil)
	if w := <-n.Wakes(); !w.Unbounded {
		t.Fatalf("the first wake is %+v, want a look at everything", w)
	}
	n.sentinel()
	record := appendEvent(t, db.Pool(), "activity:1")
	w := n.woken(Notified)
	if !slices.Equal(w.Records, []int64{record}) || w.Unbounded {
		t.Fatalf("woken with %+v, want record %d", w, record)
	}
}

// A transaction that decided that nobody sleeps, and ends after the worker has
// found nothing, needs no notification: that it ends is the wake-up.
func TestEndOfALongTransactionIsItselfTheWakeUp(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	n := startNode(t, db, nil)
	tx, err := db.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	appendEvent(t, tx, "activity:slow")
	n.woken(Reconnected) // its Dry asks for the lock
	n.becomes(Arming)

	// Others are not held up: whoever appends from here on is heard,
	record := appendEvent(t, db.Pool(), "activity:quick")
	if w := n.woken(Notified | CatchUp); !w.Unbounded && !slices.Contains(w.Records, record) {
		t.Fatalf("woken with %+v, want record %d or a look at everything", w, record)
	}
	// and who decided before is looked for.
	n.woken(CatchUp)
	if s := n.Status(); s.State != Arming {
		t.Fatalf("state %v beside an open transaction that decided not to notify", s.State)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.woken(Granted)
}

func TestOneSentinelAnswersAndHandsOver(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	a := startNode(t, db, nil)
	a.sentinel()
	b := startNode(t, db, nil)
	b.woken(Reconnected)
	b.becomes(Asleep)

	record := appendEvent(t, db.Pool(), "activity:1")
	if w := a.woken(Notified); !slices.Contains(w.Records, record) {
		t.Fatalf("the sentinel is woken with %+v, want record %d", w, record)
	}
	// Notifications come in order: when b has heard the second, it has had the
	// first, and left it to a.
	if err := a.store.Notify(t.Context(), PayloadMore); err != nil {
		t.Fatal(err)
	}
	if w := <-b.Wakes(); w.Causes != More {
		t.Fatalf("an idle worker that is not the sentinel is woken with %+v", w)
	}
	if err := a.store.Notify(t.Context(), "wants:12:6,7"); err != nil {
		t.Fatal(err)
	}
	if w := <-b.Wakes(); w.Causes != Wanted || !slices.Equal(w.Records, []int64{12}) {
		t.Fatalf("a host of a wanted consumer is woken with %+v", w)
	}
	a.woken(More)

	a.Busy()
	b.woken(Granted)
	record = appendEvent(t, db.Pool(), "activity:2")
	if w := b.woken(Notified); !slices.Contains(w.Records, record) {
		t.Fatalf("the new sentinel is woken with %+v, want record %d", w, record)
	}
}

func TestListenConnectionIsReplacedAndNothingMissed(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	n := startNode(t, db, nil)
	n.sentinel()
	for range 3 {
		n.terminate(db.Pool(), listenSession)
		// It cannot hear, and gives up the lock until it can.
		if w := n.woken(Reconnected); !w.Unbounded {
			t.Fatalf("woken with %+v after a reconnection, want a look at everything", w)
		}
		n.becomes(Asleep)
		n.becomes(Sentinel)
	}
	record := appendEvent(t, db.Pool(), "activity:1")
	if w := n.woken(Notified); !slices.Contains(w.Records, record) {
		t.Fatalf("woken with %+v, want record %d", w, record)
	}
	if got := n.log.count("listen connection lost"); got != 3 {
		t.Errorf("said %d times that the connection was lost, want 3", got)
	}
}

func TestArmingSessionIsReplacedAndArmsAgain(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	n := startNode(t, db, nil)
	n.sentinel()
	for range 3 {
		n.terminate(db.Pool(), armingSession)
		n.becomes(Asleep)
		n.becomes(Sentinel)
	}
	appendEvent(t, db.Pool(), "activity:1")
	n.woken(Notified)
}

// A statement that waits for a lock has a snapshot, which keeps vacuum back. So
// no wait is long, and one that is broken off loses nothing.
func TestLongWaitForTheSeatIsBrokenOffAndBegunAgain(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	a := startNode(t, db, nil)
	a.sentinel()
	b := startNode(t, db, func(c *Config) { c.Rearm = 30 * time.Millisecond })
	b.woken(Reconnected)
	seen := map[time.Time]bool{}
	testdb.Eventually(t, func() bool {
		var since time.Time
		err := db.Pool().QueryRow(t.Context(), `select coalesce(max(query_start), 'epoch') from pg_stat_activity
			where application_name = $1 and wait_event = 'advisory'`, b.store.ApplicationName()).Scan(&since)
		if err != nil {
			t.Fatal(err)
		}
		if since.Unix() > 0 {
			seen[since] = true
		}
		return len(seen) >= 3
	}, "the wait is not broken off")
	if s := b.Status(); s.State != Asleep {
		t.Fatalf("state %v while another has the seat", s.State)
	}
	a.Busy()
	b.woken(Granted)
}

// A request that is cancelled may be granted all the same. Whatever happens in
// the race of Busy with the grant, a busy worker ends up without the lock.
func TestBusyWorkerNeverKeepsTheLock(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	n := startNode(t, db, nil)
	n.woken(Reconnected)
	for range 20 {
		tx, err := db.Pool().Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		// Before the lock is asked for, so that its grant waits for this.
		n.Busy()
		testdb.Eventually(t, func() bool { return lockIsFree(t, tx) }, "the lock is still held while busy")
		n.Dry(0, false)
		n.becomes(Arming) // when it has lingered
		ended := make(chan error, 1)
		go func() { ended <- tx.Commit(context.Background()) }()
		n.Busy()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		check, err := db.Pool().Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		testdb.Eventually(t, func() bool { return lockIsFree(t, check) }, "a busy worker keeps the lock")
		if err := check.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// lockIsFree says whether an appender would decide that nobody sleeps.
func lockIsFree(t *testing.T, on querier) (free bool) {
	t.Helper()
	err := on.QueryRow(t.Context(), `select pg_try_advisory_xact_lock_shared(keyline.arm_key())`).Scan(&free)
	if err != nil {
		t.Fatal(err)
	}
	return free
}

func TestStopLeavesNoLockAndNoConnection(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	n := startNode(t, db, nil)
	n.sentinel()
	if err := n.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !lockIsFree(t, db.Pool()) {
		t.Error("the lock is still held after Stop")
	}
	if err := n.Stop(t.Context()); err != nil {
		t.Errorf("second Stop: %v", err)
	}
	if err := n.Start(t.Context()); err == nil {
		t.Error("Start after Stop succeeded")
	}
	n.Dry(0, false)
	n.Busy()
	select {
	case w := <-n.Wakes():
		t.Errorf("woken after Stop: %+v", w)
	default:
	}
	testdb.Eventually(t, func() bool {
		var left int
		err := db.Pool().QueryRow(t.Context(), `select count(*) from pg_stat_activity where application_name = $1
			and (query ilike 'listen%' or query ilike '%advisory%')`, n.store.ApplicationName()).Scan(&left)
		return err == nil && left == 0
	}, "connections are left after Stop")
}

// A server that accepts connections and says nothing: the worker polls, and
// can be stopped.
func TestSilentServerLeavesThePollAndAStop(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	dialed := make(chan net.Conn, 10)
	go func() {
		defer close(dialed)
		for {
			c, err := silent.Accept()
			if err != nil {
				return
			}
			dialed <- c
		}
	}()
	n := startNode(t, db, func(c *Config) {
		c.ListenURL = "postgres://x@" + silent.Addr().String() + "/x?sslmode=disable"
		c.Fallback = 10 * time.Millisecond
	})
	conn := <-dialed
	defer conn.Close()
	n.woken(Fallback)
	n.woken(Fallback)
	if s := n.Status(); s.State != Asleep || s.Mode == Listening {
		t.Errorf("without a connection: %+v", s)
	}
	if err := n.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}

// A server that refuses connections is said once, not at every attempt.
func TestUnreachableServerIsSaidOnce(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	n := startNode(t, db, func(c *Config) {
		c.ListenURL = strings.Replace(db.URL, db.Name, "no_such_database", 1)
		c.Fallback = 10 * time.Millisecond
	})
	testdb.Eventually(t, func() bool { return n.Mode() == Polling }, "mode is not polling")
	n.woken(Fallback)
	if s := n.Status(); !strings.Contains(s.Reason, "no_such_database") {
		t.Errorf("reason %q does not say what is wrong", s.Reason)
	}
	if got := n.log.count("no listen connection"); got != 1 {
		t.Errorf("said %d times, want once", got)
	}
}

func TestNewNamesTheFieldThatIsWrong(t *testing.T) {
	good := Config{
		ListenURL: "host=/tmp", Channel: "c", Arming: func() core.Arming { return nil },
		Notify: func(context.Context, string) error { return nil }, Hosted: func() []int32 { return nil },
	}
	if _, err := New(good); err != nil {
		t.Fatalf("the good configuration: %v", err)
	}
	for field, spoil := range map[string]func(*Config){
		"ListenURL": func(c *Config) { c.ListenURL = "postgres://x:y:z" },
		"Channel":   func(c *Config) { c.Channel = strings.Repeat("x", 64) },
		"Arming":    func(c *Config) { c.Arming = nil },
		"Notify":    func(c *Config) { c.Notify = nil },
		"Hosted":    func(c *Config) { c.Hosted = nil },
		"Fallback":  func(c *Config) { c.Fallback = -1 },
		"Rearm":     func(c *Config) { c.Rearm = -1 },
	} {
		cfg := good
		spoil(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: error %v does not name it", field, err)
		}
	}
}
