package store

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/internal/testdb"
	"github.com/keylinehq/keyline/keylinetype"
)

var _ core.Arming = (*Arming)(nil)

func (r *rig) newArming() *Arming {
	a := r.NewArming()
	r.Cleanup(a.Close)
	return a
}

// asleep reports whether an appender would notify now.
func (r *rig) asleep() bool {
	r.Helper()
	return !get[bool](r, "select pg_try_advisory_xact_lock_shared(keyline.arm_key())")
}

func TestOnlyOneIsElectedAndOnlyTheSleepLockMakesAppendersNotify(t *testing.T) {
	r := newRig(t)
	a, b := r.newArming(), r.newArming()
	ctx := t.Context()
	if err := errors.Join(a.Release(ctx), a.Elect(ctx)); err != nil {
		t.Fatal(err)
	}
	if r.asleep() {
		t.Error("the seat alone makes appenders notify")
	}
	if err := a.Request(ctx); err != nil || !r.asleep() {
		t.Fatalf("asleep: %v, %v", r.asleep(), err)
	}
	second := make(chan error, 1)
	go func() { second <- errors.Join(b.Release(ctx), b.Elect(ctx)) }()
	r.blocked("seat_key")
	if err := a.Release(ctx); err != nil || r.asleep() {
		t.Errorf("after the release: asleep %v, %v", r.asleep(), err)
	}
	if err := soon(r, second, "election"); err != nil {
		t.Error(err)
	}
}

func TestACancelledRequestLeavesASessionThatReleaseMakesCertain(t *testing.T) {
	r := newRig(t)
	a := r.newArming()
	tx := r.opened("r") // decided that nobody is asleep
	if err := errors.Join(a.Release(t.Context()), a.Elect(t.Context())); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan error, 1)
	go func() { got <- a.Request(ctx) }()
	r.blocked("arm_key")
	if !r.asleep() {
		t.Error("somebody who falls asleep makes appenders notify")
	}
	cancel()
	if err := soon(r, got, "cancel"); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if err := a.Release(t.Context()); err != nil || r.asleep() {
		t.Errorf("after the release: asleep %v, %v", r.asleep(), err)
	}
	r.commit(tx)
	if err := errors.Join(a.Elect(t.Context()), a.Request(t.Context())); err != nil {
		t.Error(err)
	}
}

func TestTheSleepLockIsGrantedAfterWhoeverDecidedNotToNotify(t *testing.T) {
	r := newRig(t)
	a := r.newArming()
	tx := r.opened("r")
	if err := errors.Join(a.Release(t.Context()), a.Elect(t.Context())); err != nil {
		t.Fatal(err)
	}
	granted := make(chan error, 1)
	go func() { granted <- a.Request(t.Context()) }()
	r.blocked("arm_key")
	r.commit(tx)
	if err := soon(r, granted, "grant"); err != nil {
		t.Fatal(err)
	}
	if got := r.claims(r.me, 1); len(got) != 1 {
		t.Error("the grant came before its work could be seen")
	}
}

func TestALostArmingSessionFailsUntilItIsReleased(t *testing.T) {
	r := newRig(t)
	a := r.newArming()
	ctx := t.Context()
	for what, err := range map[string]error{"elect": a.Elect(ctx), "request": a.Request(ctx), "ping": ping(ctx, a)} {
		if !errors.Is(err, errNotArmed) {
			t.Errorf("%s before the first release: %v", what, err)
		}
	}
	if err := errors.Join(a.Release(ctx), a.Elect(ctx), a.Request(ctx), ping(ctx, a)); err != nil {
		t.Fatal(err)
	}
	r.exec("select pg_terminate_backend(pid) from pg_stat_activity where application_name = $1", r.applicationName())
	if err := ping(ctx, a); !errors.Is(err, keylinetype.ErrUnavailable) {
		t.Errorf("ping: %v", err)
	}
	if err := a.Request(ctx); err == nil {
		t.Error("a request connects again, and would believe in a seat that is gone")
	}
	if err := errors.Join(a.Release(ctx), a.Elect(ctx), a.Request(ctx)); err != nil || !r.asleep() {
		t.Errorf("after a release: %v", err)
	}
}

func TestCloseEndsABlockedCall(t *testing.T) {
	r := newRig(t)
	a, b := r.newArming(), r.newArming()
	if err := errors.Join(a.Release(t.Context()), a.Elect(t.Context()), b.Release(t.Context())); err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() { got <- b.Elect(t.Context()) }()
	r.blocked("seat_key")
	b.Close()
	if err := soon(r, got, "end"); err == nil {
		t.Error("elected by a close")
	}
	b.Close()
	if err := b.Release(t.Context()); !errors.Is(err, errClosed) {
		t.Errorf("used after close: %v", err)
	}
}

func TestTheArmingSessionOutlastsTheRolesTimeouts(t *testing.T) {
	r := newRig(t)
	for _, setting := range []string{"statement_timeout = '50ms'", "lock_timeout = '50ms'", "idle_session_timeout = '50ms'", "idle_in_transaction_session_timeout = '50ms'"} {
		r.exec("alter database " + r.db.Name + " set " + setting)
	}
	a := r.newArming()
	if err := a.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"statement_timeout", "lock_timeout", "idle_session_timeout", "idle_in_transaction_session_timeout"} {
		var v string
		if err := a.conn.QueryRow(t.Context(), "show "+name).Scan(&v); err != nil || v != "0" {
			t.Errorf("%s is %s, %v", name, v, err)
		}
	}
}

// heard are the notifications that came up to one of its own.
func heard(r *rig, listen *pgx.Conn) []string {
	r.Helper()
	if err := r.Notify(r.Context(), "end"); err != nil {
		r.Fatal(err)
	}
	var got []string
	for {
		ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
		n, err := listen.WaitForNotification(ctx)
		cancel()
		if err != nil {
			r.Fatal(err)
		}
		if n.Payload == "end" {
			return got
		}
		got = append(got, n.Payload)
	}
}

func TestWakesAreSentWhenSomebodySleeps(t *testing.T) {
	r := newRig(t)
	listen := r.db.Connect()
	if _, err := listen.Exec(t.Context(), "listen "+r.Channel()); err != nil {
		t.Fatal(err)
	}
	claim := func(key string) core.Claim { return r.claimOne(r.append(key)) }
	one, two, three, wants := claim("one"), claim("two"), claim("three"), claim("wants")
	release := func(c core.Claim) core.Flush {
		return core.Flush{Record: c.Record, Token: c.Token, Head: 1, Then: core.Release}
	}
	wanting := core.Flush{Record: wants.Record, Token: wants.Token, Head: 1, Then: core.HandBack, Wants: []int32{7, 9}, WantsDueAt: r.clock.Now().Add(-time.Second)}

	r.flush1(release(one))
	if got := heard(r, listen); len(got) != 0 {
		t.Errorf("nobody sleeps: %v", got)
	}
	r.flush1(wanting)
	if got := heard(r, listen); len(got) != 1 || got[0] != "wants:"+itoa(wants.Record)+":7,9" {
		t.Errorf("a wake for hosts is sent whoever sleeps: %v", got)
	}
	a := r.newArming()
	if err := errors.Join(a.Release(t.Context()), a.Request(t.Context())); err != nil {
		t.Fatal(err)
	}
	r.flush1(release(two))
	if got := heard(r, listen); len(got) != 1 || got[0] != itoa(two.Record) {
		t.Errorf("a hand-back that leaves due work: %v", got)
	}
	late := release(three)
	late.DueAt = r.clock.Now().Add(time.Hour)
	r.flush1(late)
	if got := heard(r, listen); len(got) != 0 {
		t.Errorf("nothing is due: %v", got)
	}
	results, err := r.flush(t.Context(), []pending{ahead(release(claim("x")), r.epoch()), ahead(release(claim("y")), r.epoch())}, 0, 1)
	if err != nil || results[0].status != core.FlushGone {
		t.Fatal(results, err)
	}
	got := heard(r, listen)
	if n := strings.Count(strings.Join(got, " "), "more"); n != 1 {
		t.Errorf("several records in one flush: %v", got)
	}
}

func TestPingSeesThatThoseWhoNotifyStandInLine(t *testing.T) {
	r := newRig(t)
	a := r.newArming()
	if err := a.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if crowded, err := a.Ping(t.Context()); err != nil || crowded {
		t.Fatalf("nobody notifies: %v, %v", crowded, err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var senders sync.WaitGroup
	defer senders.Wait()
	defer stop()
	for range 8 {
		conn := r.pool
		senders.Go(func() {
			for ctx.Err() == nil {
				if _, err := conn.Exec(ctx, "select pg_notify('crowd', '')"); err != nil && ctx.Err() == nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for crowded := false; !crowded; {
		var err error
		if crowded, err = a.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// Promise: a worker is not kept awake by what others notify in databases of their own, on the same server.
func TestPingSeesNoCrowdOfAnotherDatabase(t *testing.T) {
	r, other := newRig(t), testdb.NewEmpty(t).Pool()
	a := r.newArming()
	if err := a.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var senders sync.WaitGroup
	defer senders.Wait()
	defer stop()
	for range 8 {
		senders.Go(func() {
			for ctx.Err() == nil {
				if _, err := other.Exec(ctx, "select pg_notify('crowd', '')"); err != nil && ctx.Err() == nil {
					t.Error(err)
					return
				}
			}
		})
	}
	const others = `select exists (select from pg_locks l join pg_stat_activity s using (pid) join pg_database d on d.oid = s.datid
		where l.locktype = 'object' and l.database = 0 and l.objid = 0 and not l.granted and d.datname = $1)`
	for seen := 0; seen < 20; {
		if crowded, err := a.Ping(t.Context()); err != nil || crowded {
			t.Fatalf("others notify: %v, %v", crowded, err)
		}
		if get[bool](r, others, other.Config().ConnConfig.Database) {
			seen++
		}
	}
}

func ping(ctx context.Context, a *Arming) error {
	_, err := a.Ping(ctx)
	return err
}
