package store

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/internal/testdb"
	"github.com/keylinehq/keyline/keylinetype"
)

// unbegun runs a handler that must not run, and wants the delivery to be put off without a charge.
func (x *txRig) unbegun(why string) {
	x.Helper()
	out := x.run(func(context.Context, pgx.Tx) error {
		x.Errorf("%s: the handler runs", why)
		return nil
	})
	if verdict, delay, _ := keylinetype.Judge(out.Err); verdict != keylinetype.VerdictSnooze || delay < beginPause || delay > 2*beginPause || out.Booked != nil || out.Fenced {
		x.Errorf("%s: %+v, put off for %s", why, out, delay)
	}
}

// TestATransactionThatCannotBeBegunIsNotCharged: the handler has not run, and it is not the delivery that failed.
func TestATransactionThatCannotBeBegunIsNotCharged(t *testing.T) {
	var refuse atomic.Bool
	var reason atomic.Pointer[error]
	x := newTxRig(t, func(c *Config) {
		next := c.Pool.ConnConfig.DialFunc
		c.Pool.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if refuse.Load() {
				return nil, *reason.Load()
			}
			return next(ctx, network, addr)
		}
		c.Pool.ConnConfig.RuntimeParams["lock_timeout"] = "20ms"
	})
	refuse.Store(true)
	for why, err := range map[string]error{
		"no connection": errors.New("staged: nobody answers"), "a password that was changed": &pgconn.PgError{Severity: "FATAL", Code: "28P01"},
	} {
		reason.Store(&err)
		x.unbegun(why)
	}
	refuse.Store(false)
	x.exec("alter function keyline.hold rename to hold_away")
	x.unbegun("no function")
	x.exec("create function keyline.hold(bigint, bigint, bigint) returns void language sql return null")
	x.unbegun("no word of the transaction's id")
	x.exec("drop function keyline.hold")
	x.exec("alter function keyline.hold_away rename to hold")

	locker, err := x.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := locker.Exec(t.Context(), "select from keyline.mailboxes for update"); err != nil {
		t.Fatal(err)
	}
	x.unbegun("the role's lock_timeout")
	if err := locker.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out := x.run(effect(1)); out.Err != nil || out.Booked == nil || x.effects() != 1 {
		t.Errorf("in the end: %+v", out)
	}
}

// TestNoTimeoutOfTheRoleEndsAHandlersTransaction: there is no generic timeout for handlers, and one that waits for
// something outside leaves its transaction idle.
func TestNoTimeoutOfTheRoleEndsAHandlersTransaction(t *testing.T) {
	x := newTxRig(t, func(c *Config) {
		c.Pool.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = "4s"
		c.Pool.ConnConfig.RuntimeParams["statement_timeout"] = "5s"
	})
	read := func(ctx context.Context, on pgx.Tx, name string) (value string) {
		if err := on.QueryRow(ctx, "select coalesce(current_setting($1, true), '0')", name).Scan(&value); err != nil {
			t.Error(err)
		}
		return value
	}
	out := x.run(func(ctx context.Context, tx pgx.Tx) error {
		for name, want := range map[string]string{
			"idle_in_transaction_session_timeout": "0", "transaction_timeout": "0",
			"statement_timeout": "5s", // this one is about the handler's own statements
		} {
			if value := read(ctx, tx, name); value != want {
				t.Errorf("%s is %s", name, value)
			}
		}
		return nil
	})
	if out.Err != nil {
		t.Error(out.Err)
	}
	// What is not a handler's keeps the role's limits.
	conn, err := x.tx.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if value := read(t.Context(), tx, "idle_in_transaction_session_timeout"); value != "4s" {
		t.Errorf("afterwards it is %s", value)
	}
}

// TestAHandlerThatKeepsARoleIsToldWhatToDo: the outcome is booked with the rights that the handler leaves behind.
func TestAHandlerThatKeepsARoleIsToldWhatToDo(t *testing.T) {
	x := newTxRig(t)
	take := func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "set local role pg_signal_backend")
		return err
	}
	if out := x.run(take); out.Err == nil || !strings.Contains(out.Err.Error(), "reset role") || out.Booked != nil {
		t.Errorf("kept: %+v", out)
	}
	out := x.run(func(ctx context.Context, tx pgx.Tx) error {
		if err := take(ctx, tx); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "reset role")
		return err
	})
	if out.Err != nil || out.Booked == nil {
		t.Errorf("given back: %+v", out)
	}
}

// Promise: a lock on what an outcome is booked in charges no delivery, however short the role's patience; a failure of the handler's own stays one.
// (Seen on a slow machine, where handlers still ran when the table was locked.)
func TestAnOutcomeThatCannotBeBookedForALockIsNotCharged(t *testing.T) {
	for setting, state := range map[string]string{"statement_timeout": stateCancelled, "lock_timeout": stateLockTimeout} {
		t.Run(setting, func(t *testing.T) {
			x := newTxRig(t, func(c *Config) { c.Pool.ConnConfig.RuntimeParams[setting] = "300ms" })
			locked := func(result error) (out func(context.Context, pgx.Tx) error, unlock func()) {
				locker, err := x.pool.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				return func(ctx context.Context, tx pgx.Tx) error {
					err := effect(1)(ctx, tx)
					if _, lockErr := locker.Exec(ctx, "set local statement_timeout = 0; set local lock_timeout = 0; lock table keyline.checkpoints in access exclusive mode"); lockErr != nil {
						t.Error(lockErr)
					}
					return errors.Join(err, result)
				}, func() { x.rollbackTx(locker) }
			}
			handler, unlock := locked(nil)
			out := x.run(handler)
			unlock()
			if verdict, delay, _ := keylinetype.Judge(out.Err); verdict != keylinetype.VerdictSnooze || delay < beginPause || sqlState(out.Err) != state || out.Booked != nil || out.Fenced {
				t.Errorf("%+v", out)
			}
			handler, unlock = locked(errBoom)
			out = x.run(handler)
			unlock()
			if verdict, _, _ := keylinetype.Judge(out.Err); verdict == keylinetype.VerdictSnooze || !errors.Is(out.Err, errBoom) || out.Booked != nil {
				t.Errorf("its own failure: %+v", out)
			}
			if x.effects() != 0 || x.row() != "0 ready 0" {
				t.Errorf("%d effects, row %s", x.effects(), x.row())
			}
			if out := x.run(effect(1)); out.Err != nil || out.Booked == nil || x.effects() != 1 {
				t.Errorf("in the end: %+v", out)
			}
		})
	}
}

// Promise: a limit that a handler sets for its own statements, and leaves, does not keep its outcome from being booked for ever.
func TestALimitThatAHandlerLeavesEndsNoBookingTwice(t *testing.T) {
	for _, setting := range []string{"statement_timeout", "lock_timeout"} {
		t.Run(setting, func(t *testing.T) {
			x := newTxRig(t)
			x.exec("create table gate (); create function pass() returns trigger language plpgsql as $$ begin lock table gate; return new; end $$")
			x.exec("create trigger pass before update on keyline.checkpoints for each row execute function pass()")
			limited := func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "set local "+setting+" = '50ms'")
				return errors.Join(err, effect(1)(ctx, tx))
			}
			gate := x.begin()
			x.in(gate, "lock table gate")
			if out := x.run(limited); out.Booked != nil {
				t.Errorf("behind a lock, under the limit: %+v", out)
			} else if verdict, _, _ := keylinetype.Judge(out.Err); verdict != keylinetype.VerdictSnooze {
				t.Errorf("behind a lock, under the limit: %v", out.Err)
			}
			booked := make(chan core.Outcome)
			go func() { booked <- x.run(limited) }()
			testdb.Eventually(x, func() bool { // its limit is over
				return get[bool](x.rig, `select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'
					and query ilike '%update keyline.checkpoints%' and clock_timestamp() > query_start + interval '100ms')`)
			}, "the booking to wait for longer than the limit")
			x.commit(gate)
			if out := <-booked; out.Err != nil || out.Booked == nil || x.effects() != 1 {
				t.Errorf("again, behind a lock: %+v", out)
			}
		})
	}
}
