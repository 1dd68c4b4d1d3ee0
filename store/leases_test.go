package store

import (
	"context"
	"errors"
	"slices"
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
	i := slices.IndexFunc(beats, func(b core.Beat) bool { return b.Worker == worker })
	if i < 0 {
		r.Fatalf("worker %d has no beat", worker)
	}
	return beats[i]
}

func TestRenewMovesTheBeatAndPublishesTheState(t *testing.T) {
	r := newRig(t)
	first := r.beat(r.me)
	if first.Lease != 15*time.Second {
		t.Errorf("lease %v", first.Lease)
	}
	if err := r.Renew(t.Context(), r.me, []byte(`{"a": 1}`)); err != nil {
		t.Fatal(err)
	}
	if b := r.beat(r.me); b.Beat != first.Beat+1 {
		t.Errorf("beat %d after %d", b.Beat, first.Beat)
	}
	if got := get[string](r, "select state ->> 'a' from keyline.workers where id = $1", r.me); got != "1" {
		t.Errorf("state %q", got)
	}
	if err := r.Renew(t.Context(), r.me, []byte("{")); !errors.Is(err, keylinetype.ErrInvalid) {
		t.Errorf("state that is not JSON: %v", err)
	}
	if err := r.Renew(t.Context(), r.me, nil); err != nil {
		t.Error(err)
	}
	if err := r.Leave(t.Context(), r.me); err != nil {
		t.Fatal(err)
	}
	if err := r.Renew(t.Context(), r.me, nil); !errors.Is(err, keylinetype.ErrFenced) {
		t.Errorf("after leaving: %v", err)
	}
}

func TestAWorkerIsMarkedLostOnlyAtTheBeatThatWasSeen(t *testing.T) {
	r := newRig(t)
	w := r.join("other")
	seen := r.beat(w)
	if err := r.Renew(t.Context(), w, nil); err != nil {
		t.Fatal(err)
	}
	if marked, err := r.MarkLost(t.Context(), seen); marked || err != nil {
		t.Fatalf("it had renewed: %v, %v", marked, err)
	}
	if marked, err := r.MarkLost(t.Context(), r.beat(w)); !marked || err != nil {
		t.Fatalf("%v, %v", marked, err)
	}
	if marked, err := r.MarkLost(t.Context(), seen); marked || err != nil {
		t.Errorf("twice: %v, %v", marked, err)
	}
	if err := r.Renew(t.Context(), w, nil); !errors.Is(err, keylinetype.ErrFenced) {
		t.Errorf("a lost worker renews: %v", err)
	}
}

func TestRecoveryChargesACrashForLostWorkersOnly(t *testing.T) {
	r := newRig(t)
	c := r.register(definition("c"))
	lost, left, live := r.join("lost"), r.join("left"), r.me
	tokens := map[int64]int64{}
	claim := func(key string, worker int64) int64 {
		id := r.append(key, "t", "t")
		claims, err := r.Claim(t.Context(), core.ClaimRequest{Worker: worker, Limit: 1, Record: id})
		if err != nil || len(claims) != 1 {
			t.Fatal(claims, err)
		}
		tokens[id] = claims[0].Token
		// An attempt that was written ahead.
		r.exec("insert into keyline.checkpoints (record_id, consumer_id, seq, state, attempt) values ($1, $2, 0, 'started', 2)", id, c)
		return id
	}
	a, b, d := claim("a", lost), claim("b", left), claim("d", live)
	if err := r.Leave(t.Context(), left); err != nil {
		t.Fatal(err)
	}
	if marked, err := r.MarkLost(t.Context(), r.beat(lost)); !marked || err != nil {
		t.Fatal(marked, err)
	}
	n, err := r.Recover(t.Context())
	if err != nil || n != 2 {
		t.Fatalf("recovered %d, %v", n, err)
	}
	if n, err := r.Recover(t.Context()); n != 0 || err != nil {
		t.Errorf("again: %d, %v", n, err)
	}
	for id, crashes := range map[int64]int{a: 1, b: 0} {
		if r.mailbox(id) != "due" {
			t.Errorf("record %d: mailbox %q", id, r.mailbox(id))
		}
		c := r.claimOne(id)
		if c.Crashes != crashes || !c.Unclean || c.Token <= tokens[id] {
			t.Errorf("record %d: %+v after token %d", id, c, tokens[id])
		}
	}
	if r.mailbox(d) != "claimed" || get[int64](r, "select token from keyline.mailboxes where record_id = $1", d) != tokens[d] {
		t.Error("a live worker lost its claim")
	}
	// What a lost worker had written ahead is found as begun; what one that left had, is given back.
	for id, want := range map[int64]string{a: "started 2 0", b: "ready 2 1", d: "started 2 0"} {
		if got := get[string](r, "select state || ' ' || attempt || ' ' || granted from keyline.checkpoints where record_id = $1", id); got != want {
			t.Errorf("record %d: %q, want %q", id, got, want)
		}
	}
}

func TestAClaimThatCommitsJustAfterItsWorkerWasMarkedLostIsFreed(t *testing.T) {
	r := newRig(t)
	w := r.join("other")
	id := r.append("r")
	tx, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), r.named("select * from keyline.claim($1, 10, '{}', '-infinity', null)"), w); err != nil {
		t.Fatal(err)
	}
	seen := r.beat(w)
	marked := make(chan error, 1)
	go func() {
		ok, err := r.MarkLost(t.Context(), seen)
		if !ok {
			err = errors.Join(err, errors.New("not marked"))
		}
		marked <- err
	}()
	if err := soon(r, marked, "marking, which a claim in flight must not keep"); err != nil {
		t.Fatal(err)
	}
	if n, err := r.Recover(t.Context()); n != 0 || err != nil {
		t.Fatalf("nothing is committed yet: %d, %v", n, err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r.mailbox(id) != "claimed" {
		t.Fatalf("mailbox %q", r.mailbox(id)) // else there is nothing to free
	}
	if n, err := r.Recover(t.Context()); n != 1 || err != nil || r.mailbox(id) != "due" {
		t.Errorf("%d, %v, mailbox %q", n, err, r.mailbox(id))
	}
}

func TestMarkingLostEndsTheWorkersSessions(t *testing.T) {
	r := newRig(t)
	other := on(t, r.db)
	conn, err := other.tx.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	arming := other.NewArming()
	defer arming.Close()
	if err := errors.Join(arming.Release(t.Context()), arming.Request(t.Context())); err != nil {
		t.Fatal(err)
	}
	if marked, err := r.MarkLost(t.Context(), r.beat(other.me)); !marked || err != nil {
		t.Fatal(marked, err)
	}
	testdb.Eventually(t, func() bool {
		return get[int64](r, "select count(*) from pg_stat_activity where application_name = $1", other.applicationName()) == 0
	}, "its sessions to end")
	if _, err := arming.Ping(t.Context()); !errors.Is(err, keylinetype.ErrUnavailable) {
		t.Errorf("a frozen sentinel's session lives on: %v", err)
	}
	if err := r.hot.Ping(t.Context()); err != nil {
		t.Errorf("another worker's session: %v", err)
	}
}

func TestAnIncarnationThatReplacedALostOneKeepsItsSessions(t *testing.T) {
	r := newRig(t)
	other := on(t, r.db)
	second := other.join("again") // the same process, hence the same instance
	conn, err := other.tx.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if marked, err := r.MarkLost(t.Context(), r.beat(other.me)); !marked || err != nil {
		t.Fatal(marked, err)
	}
	if err := conn.Ping(t.Context()); err != nil {
		t.Errorf("%v (its incarnation %d lives)", err, second)
	}
}

func TestOrphansAreHandedBackAndHeldClaimsAreNot(t *testing.T) {
	r := newRig(t)
	for _, key := range []string{"held", "orphan", "ahead", "reclaimed", "young"} {
		r.append(key)
	}
	claims := map[string]core.Claim{}
	for _, key := range []string{"held", "orphan", "ahead", "reclaimed", "young"} {
		claims[key] = r.claimOne(r.record(key))
	}
	other := r.join("other")
	foreign := r.append("foreign")
	if _, err := r.Claim(t.Context(), core.ClaimRequest{Worker: other, Limit: 1, Record: foreign}); err != nil {
		t.Fatal(err)
	}
	r.exec("update keyline.mailboxes set claimed_at = claimed_at - interval '1 minute' where record_id <> $1", claims["young"].Record)
	r.exec("update keyline.mailboxes set claimed_at = clock_timestamp() + interval '1 hour' where record_id = $1", claims["ahead"].Record) // the clock was set back
	held := []core.Held{
		{Record: claims["held"].Record, Token: claims["held"].Token},
		{Record: claims["reclaimed"].Record, Token: claims["reclaimed"].Token - 1}, // held under a token that is no longer the row's
	}
	n, err := r.HandBackOrphans(t.Context(), r.me, held)
	if err != nil || n != 3 {
		t.Fatalf("%d, %v", n, err)
	}
	for key, want := range map[string]string{"held": "claimed", "orphan": "due", "ahead": "due", "reclaimed": "due", "young": "claimed", "foreign": "claimed"} {
		if got := r.mailbox(r.record(key)); got != want {
			t.Errorf("%s: %s, want %s", key, got, want)
		}
	}
	if c := r.claimOne(claims["orphan"].Record); c.Crashes != 0 || !c.Unclean {
		t.Errorf("%+v: a hand-back charges nothing", c)
	}
}

func TestWithTheRolesDefaultAtRepeatableReadEverythingWorks(t *testing.T) {
	r := newRig(t)
	r.exec("alter database " + r.db.Name + " set default_transaction_isolation = 'repeatable read'")
	w := on(t, r.db)
	if got := func() (v string) { _ = w.hot.QueryRow(t.Context(), "show transaction_isolation").Scan(&v); return }(); got != "repeatable read" {
		t.Fatalf("the default is %s", got)
	}
	level := make(chan string, 9)
	c := w.register(definition("c", func(d *Definition) { d.Transactional = true }))
	w.sweepAll()
	l := w.load(w.claimOne(w.append("r")))
	w.flush1(core.Flush{Record: l.Record, Token: l.Token, Head: 1, Upserts: []core.Checkpoint{{Record: l.Record, Consumer: c, State: core.Ready}}})
	out := w.RunTx(t.Context(), &core.Work{Record: l.Record, Token: l.Token, Consumer: &core.Consumer{ID: c}}, readLevel(level), completed(l.Record, c, 1))
	if out.Err != nil || out.Booked == nil {
		t.Fatalf("%+v", out)
	}
	if got := <-level; got != "read committed" {
		t.Errorf("HandleTx runs at %s", got)
	}
	// The settle race at its worst step: the snapshot must be newer than the lock.
	tx := w.opened("r")
	if res := w.flush1(settle(l)); !res.Busy {
		t.Errorf("%+v", res)
	}
	w.commit(tx)
	if res := w.flush1(settle(l)); res.Status != core.FlushKept || res.Head != 2 {
		t.Errorf("%+v", res)
	}
	if _, err := w.Recover(t.Context()); err != nil {
		t.Error(err)
	}
	if err := w.SetStatus(t.Context(), "c", core.Paused, "op", ""); err != nil {
		t.Error(err)
	}
	// A flush that waits for the barrier sees the epoch that the change has made.
	barrier, err := w.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{w.q("barrier"), w.q("raise_epoch")} {
		if _, err := barrier.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	got := make(chan core.FlushResult, 1)
	w.Flush(new(settle(l)), w.epoch(), func(res core.FlushResult) { got <- res })
	w.blocked(".flush(")
	w.commit(barrier)
	if res := soon(w, got, "flush"); res.Status != core.FlushEpoch {
		t.Errorf("%+v", res)
	}
}

func TestAWorkerOfAnotherRoleIsMarkedLostThoughItsSessionsCannotBeEnded(t *testing.T) {
	r := newRig(t)
	role := "keyline_other_" + r.db.Name
	r.exec("create role " + role + " login")
	r.Cleanup(func() {
		_, err := r.pool.Exec(context.Background(), "drop owned by "+role+"; drop role "+role)
		if err != nil {
			t.Error(err)
		}
	})
	r.exec("grant usage on schema keyline to " + role)
	r.exec("grant all on all tables in schema keyline to " + role)
	r.exec("grant all on all sequences in schema keyline to " + role)
	r.exec("grant all on all functions in schema keyline to " + role)
	lost := on(t, r.db) // of the superuser
	conn, err := lost.tx.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	observer := on(t, r.db, func(c *Config) { c.Pool.ConnConfig.RuntimeParams["role"] = role })
	if marked, err := observer.MarkLost(t.Context(), r.beat(lost.me)); !marked || err != nil {
		t.Errorf("%v, %v", marked, err)
	}
	if err := conn.Ping(t.Context()); err != nil {
		t.Errorf("the session could be ended, so this says nothing: %v", err)
	}
}

// TestANumberThatAnotherProcessHasNowIsNotRenewed: where the database is restored beneath its workers, their numbers are
// given again, and two processes must not both be the worker of one.
func TestANumberThatAnotherProcessHasNowIsNotRenewed(t *testing.T) {
	old := newRig(t)
	old.exec("delete from keyline.workers")
	old.exec("alter sequence keyline.workers_id_seq restart with " + itoa(old.me))
	other := on(t, old.db)
	if other.me != old.me {
		t.Fatalf("worker %d beside %d", other.me, old.me)
	}
	if err := old.Renew(t.Context(), old.me, nil); !errors.Is(err, keylinetype.ErrFenced) {
		t.Errorf("renewing: %v", err)
	}
	if err := old.Leave(t.Context(), old.me); err != nil {
		t.Error(err)
	}
	if err := other.Renew(t.Context(), other.me, nil); err != nil {
		t.Errorf("whose number it is: %v", err)
	}
}
