package store

import (
	"fmt"
	"testing"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/internal/testdb"
)

// Who is lost cannot leave any more: its records are suspects.
func TestALostWorkerCannotLeave(t *testing.T) {
	r := newRig(t)
	r.lose(r.me)
	if err := r.Leave(t.Context(), r.me); err != nil {
		t.Fatal(err)
	}
	if got := get[string](r, "select status from keyline.workers where id = $1", r.me); got != "lost" {
		t.Errorf("it is %s", got)
	}
}

// A copy of a database, from a template or a dump, has the rows of workers that live and work on the original.
func TestAWorkerThatIsLostInACopyIsLeftAloneInTheOriginal(t *testing.T) {
	r := newRig(t)
	copied := on(t, testdb.New(t))
	id := get[int64](copied, `insert into keyline.workers (name, instance, host, pid, lease) values ('w', $1, 'here', 1, '15 s') returning id`, r.instance)
	conn, err := r.lease.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if marked, err := copied.MarkLost(t.Context(), copied.beat(id)); !marked || err != nil {
		t.Fatal(marked, err)
	}
	if _, err := conn.Exec(t.Context(), "select 1"); err != nil {
		t.Errorf("the original's session was ended: %v", err)
	}
}

func TestOfManyObserversOneMarks(t *testing.T) {
	r := newRig(t)
	victim := on(t, r.db).me
	seen := r.beat(victim)
	const observers = 6
	marks := make(chan bool, observers)
	for range observers {
		go func() {
			marked, err := r.MarkLost(t.Context(), seen)
			if err != nil {
				t.Error(err)
			}
			marks <- marked
		}()
	}
	n := 0
	for range observers {
		if soon(r, marks, "a mark") {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d observers have marked it", n)
	}
}

func TestASecondCrashInARowCountsAsTheSecond(t *testing.T) {
	r := newRig(t)
	id := r.append("r")
	for crashes := range 3 {
		victim := r.join("victim")
		claims := r.claims(victim, 1)
		if len(claims) != 1 || claims[0].Crashes != crashes || claims[0].Unclean != (crashes > 0) {
			t.Fatalf("after %d crashes the holder is told %+v", crashes, claims)
		}
		r.lose(victim)
		if n, err := r.Recover(t.Context()); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	if b := r.box(id); b.crashes != 3 {
		t.Errorf("mailbox: %+v", b)
	}
}

func TestRecoveryFreesMoreThanAChunk(t *testing.T) {
	r := newRig(t)
	const n = recoverChunk + 7
	if err := r.BareSeed(t.Context(), "r", n, 1); err != nil {
		t.Fatal(err)
	}
	victim := r.join("victim")
	if got := r.claims(victim, 2*n); len(got) != n {
		t.Fatalf("claimed %d", len(got))
	}
	r.lose(victim)
	if got, err := r.Recover(t.Context()); got != n || err != nil {
		t.Errorf("freed %d, %v", got, err)
	}
	if left := r.count("mailboxes", "claimed_by is not null"); left != 0 {
		t.Errorf("%d are still claimed", left)
	}
}

// started writes what a suspect's holder writes ahead of a run: of a
// consumer's delivery, and of a dead letter's retry.
func (r *rig) started(record int64, consumer int32) {
	r.Helper()
	r.exec(`insert into keyline.checkpoints (record_id, consumer_id, seq, state, attempt, granted) values ($1, $2, 0, 'started', 3, 1)`, record, consumer)
	r.exec(`insert into keyline.dead_letters (record_id, seq, consumer_id, event_id, attempt, granted, started, reason, error_code, first_failed_at, failed_at, status, due_at)
		values ($1, 1, $2, gen_random_uuid(), 5, 4, true, 'exhausted', 'x', now(), now(), 'retrying', now())`, record, consumer)
}

// What was written ahead of a run counts as a crash if the process is found to
// have died in it, and against no budget if nobody crashed.
func TestRecoveryGivesBackAttemptsWrittenAheadWhereNobodyCrashed(t *testing.T) {
	for name, want := range map[string]struct {
		state          core.State
		granted, again int
		started        bool
	}{
		"left": {core.Ready, 2, 5, false},
		"lost": {core.Started, 1, 4, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t) // of its own: what one leaves due the other would claim
			c := r.register(definition("c"))
			id, victim := r.append(name), r.join(name)
			if got := r.claims(victim, 1); len(got) != 1 {
				t.Fatal(got)
			}
			r.started(id, c)
			if name == "lost" {
				r.lose(victim)
			} else if err := r.Leave(t.Context(), victim); err != nil {
				t.Fatal(err)
			}
			if n, err := r.Recover(t.Context()); n != 1 || err != nil {
				t.Fatal(n, err)
			}
			row := r.row(id, c)
			if row.State != want.state || row.Attempt != 3 || row.Granted != want.granted {
				t.Errorf("row %+v", row)
			}
			if got := get[string](r, "select attempt || ' ' || granted || ' ' || started from keyline.dead_letters where record_id = $1", id); got != fmt.Sprint(5, " ", want.again, " ", want.started) {
				t.Errorf("dead letter: %s", got)
			}
		})
	}
}

// A recovery reads the clock and the workers one after the other. One that leaves in between has an end that lies more
// than a lease after that clock, which is what a clock that was set back looks like.
func TestARecoveryThatBeganBeforeAWorkerLeftKeepsWhatItsHandlersAreAt(t *testing.T) {
	r := newRig(t)
	w := r.join("other")
	id := r.append("r")
	r.claims(w, 10)
	r.overtaken("recover", "workers", func() error {
		_, err := r.Recover(t.Context())
		return err
	}, "update keyline.workers set status = 'left', ended_at = clock_timestamp() + lease where id = $1", w)
	if got := r.mailbox(id); got != "claimed" {
		t.Errorf("mailbox %q: its handlers still run, and another worker would begin", got)
	}
}
