package store

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/internal/testdb"
	"github.com/keylinehq/keyline/keylinetype"
)

func (r *rig) beat(worker int64) core.Beat {
	r.Helper()
	beats, err := r.Beats(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	for _, b := range beats {
		if b.Worker == worker {
			return b
		}
	}
	r.Fatalf("worker %d has no beat: %v", worker, beats)
	panic("unreachable")
}

func (r *rig) status(worker int64) string {
	r.Helper()
	return get[string](r, "select status from keyline.workers where id = $1", worker)
}

// markLost is what another process's store does.
func (r *rig) markLost(seen core.Beat) bool {
	r.Helper()
	marked, err := r.MarkLost(r.Context(), seen)
	if err != nil {
		r.Fatal(err)
	}
	return marked
}

func TestARenewalMovesTheBeatOfALiveWorkerOnly(t *testing.T) {
	r := newRig(t)
	before := r.beat(r.me)
	if before.Lease != 15*time.Second {
		t.Errorf("lease %v", before.Lease)
	}
	if err := r.Renew(t.Context(), r.me, []byte(`{"running": 3}`)); err != nil {
		t.Fatal(err)
	}
	after := r.beat(r.me)
	if after.Beat <= before.Beat {
		t.Errorf("beat %d after %d", after.Beat, before.Beat)
	}
	if got := get[int](r, "select (state ->> 'running')::int from keyline.workers where id = $1", r.me); got != 3 {
		t.Errorf("state says %d", got)
	}
	if err := r.Renew(t.Context(), r.me, []byte("not json")); !errors.Is(err, keylinetype.ErrInvalid) {
		t.Errorf("state that is not JSON: %v", err)
	}

	left := r.join("left")
	if err := r.Leave(t.Context(), left); err != nil {
		t.Fatal(err)
	}
	r.lose(r.me)
	for _, worker := range []int64{r.me, left, 999} {
		if err := r.Renew(t.Context(), worker, nil); !errors.Is(err, keylinetype.ErrFenced) {
			t.Errorf("worker %d: %v", worker, err)
		}
	}
	if beats, err := r.Beats(t.Context()); err != nil || len(beats) != 0 {
		t.Errorf("beats of the dead: %v, %v", beats, err)
	}
}

// An observer may be late: whoever has renewed since it looked is alive.
func TestMarkingLostIsACompareAndSetOnTheBeat(t *testing.T) {
	r := newRig(t)
	observer := on(t, r.db)
	seen := observer.beat(r.me)
	if err := r.Renew(t.Context(), r.me, nil); err != nil {
		t.Fatal(err)
	}
	if observer.markLost(seen) || r.status(r.me) != "live" {
		t.Fatalf("marked lost after a renewal; it is %s", r.status(r.me))
	}
	seen = observer.beat(r.me)
	if !observer.markLost(seen) || r.status(r.me) != "lost" {
		t.Fatalf("not marked; it is %s", r.status(r.me))
	}
	if observer.markLost(seen) {
		t.Error("marked twice")
	}
	if err := observer.Renew(t.Context(), r.me, nil); !errors.Is(err, keylinetype.ErrFenced) {
		t.Errorf("it renews: %v", err)
	}
	// Who is lost cannot leave any more: its records are suspects.
	if err := observer.Leave(t.Context(), r.me); err != nil {
		t.Fatal(err)
	}
	if got := observer.status(r.me); got != "lost" {
		t.Errorf("it is %s", got)
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

// A worker that claims in the instant in which it is marked holds records that
// no mark names: recovery goes by who is not live, not by who was just marked.
func TestRecoveryFreesAClaimThatCommittedJustAfterTheMark(t *testing.T) {
	r := newRig(t)
	id := r.append("r")
	// The claim of a worker whose process is slow: checked, locked, not committed.
	slow := r.begin()
	victim := r.join("slow")
	r.in(slow, "select from keyline.claim($1, 1, null, '-infinity', null)", victim)
	if !r.markLost(r.beat(victim)) {
		t.Fatal("the mark waits for a claim")
	}
	if n, err := r.Recover(t.Context()); n != 0 || err != nil {
		t.Fatalf("before the commit recovery frees %d, %v", n, err)
	}
	r.commitTx(slow)
	if b := r.box(id); b.claimedBy != victim {
		t.Fatalf("mailbox: %+v", b)
	}
	if n, err := r.Recover(t.Context()); n != 1 || err != nil {
		t.Errorf("recovery frees %d, %v", n, err)
	}
	if b := r.box(id); b.claimedBy != 0 || !b.due || !b.unclean || b.crashes != 1 {
		t.Errorf("mailbox: %+v", b)
	}
}

func TestRecoveryChargesACrashToRecordsOfLostWorkersOnly(t *testing.T) {
	r := newRig(t)
	lost, left, live := on(t, r.db), on(t, r.db), on(t, r.db)
	ids := map[*rig]int64{lost: r.append("lost"), left: r.append("left"), live: r.append("live")}
	tokens := map[*rig]int64{}
	for worker, id := range ids {
		tokens[worker] = worker.claimOne(id).Token
	}
	if err := left.Leave(t.Context(), left.me); err != nil {
		t.Fatal(err)
	}
	if !r.markLost(r.beat(lost.me)) {
		t.Fatal("not marked")
	}
	if n, err := r.Recover(t.Context()); n != 2 || err != nil {
		t.Fatalf("freed %d, %v", n, err)
	}
	for worker, want := range map[*rig]box{
		lost: {exists: true, due: true, unclean: true, crashes: 1},
		left: {exists: true, due: true, unclean: true},
		live: {exists: true, due: true, claimedBy: live.me, token: tokens[live]},
	} {
		got := r.box(ids[worker])
		if worker != live && got.token <= tokens[worker] {
			t.Errorf("token %d after %d", got.token, tokens[worker])
		}
		if worker != live {
			got.token = 0
		}
		got.dueIn = 0
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	if n, err := r.Recover(t.Context()); n != 0 || err != nil {
		t.Errorf("again: freed %d, %v", n, err)
	}
	// The second crash in a row counts as the second.
	other := on(t, r.db)
	if c := other.claimOne(ids[lost]); c.Crashes != 1 || !c.Unclean {
		t.Errorf("the next holder is told %+v", c)
	}
	other.lose(other.me)
	if _, err := r.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	if b := r.box(ids[lost]); b.crashes != 2 {
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
	r := newRig(t)
	c := r.register(definition("c"))
	for name, want := range map[string]struct {
		state          core.State
		granted, again int
		started        bool
	}{
		"left": {core.Ready, 2, 5, false},
		"lost": {core.Started, 1, 4, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := r.sub(t)
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

// sessionsOf counts the sessions of a process.
func (r *rig) sessionsOf(other *rig) int {
	r.Helper()
	return get[int](r, "select count(*) from pg_stat_activity where application_name = $1", other.ApplicationName())
}

// A frozen process may hold the lock that makes everybody notify, or a HandleTx
// open, for as long as its sockets stand.
func TestALostWorkersSessionsAreEnded(t *testing.T) {
	r := newRig(t)
	victim := on(t, r.db)
	arming := victim.NewArming()
	defer arming.Close()
	for _, step := range []error{arming.Release(t.Context()), arming.Elect(t.Context()), arming.Request(t.Context())} {
		if step != nil {
			t.Fatal(step)
		}
	}
	if n := r.sessionsOf(victim); n < 2 {
		t.Fatalf("it has %d sessions", n)
	}
	if !r.markLost(r.beat(victim.me)) {
		t.Fatal("not marked")
	}
	testdb.Eventually(t, func() bool { return r.sessionsOf(victim) == 0 }, "its sessions end")
	// The lock that it slept on is free.
	if !get[bool](r, "select pg_try_advisory_xact_lock(keyline.arm_key())") {
		t.Error("its lock is still held")
	}
	if err := arming.Ping(t.Context()); err == nil {
		t.Error("its arming session answers")
	}
	if n := r.sessionsOf(r); n == 0 {
		t.Error("the observer's own sessions were ended too")
	}
}

// A process that was fenced goes on as a new incarnation, with the sessions it
// has: who is late to mark the old one must not cut the new one off.
func TestSessionsOfANewerIncarnationAreLeftAlone(t *testing.T) {
	r := newRig(t)
	victim := on(t, r.db)
	old, seen := victim.me, r.beat(victim.me)
	conn, err := victim.hot.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if victim.me = victim.join("again"); victim.me == old {
		t.Fatal("the same incarnation")
	}
	if !r.markLost(seen) {
		t.Fatal("not marked")
	}
	if _, err := conn.Exec(t.Context(), "select 1", pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Errorf("the new incarnation's session was ended: %v", err)
	}
	if err := victim.Renew(t.Context(), victim.me, nil); err != nil {
		t.Errorf("the new incarnation cannot renew: %v", err)
	}
	if err := victim.Renew(t.Context(), old, nil); !errors.Is(err, keylinetype.ErrFenced) {
		t.Errorf("the old one: %v", err)
	}
}
