package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/internal/clock"
)

// frozen is how long the server believes in a client that says nothing in the middle of a transaction which others wait for.
const frozen = 10 * time.Second

// attempt is one try at a change: a transaction, and what remains of the patience.
type attempt struct {
	o  *Outbox
	tx pgx.Tx
	p  Patience
	// until is when to give up, on the monotonic clock.
	until time.Duration
}

// change runs f in one transaction, as often as it takes: whatever others held for too long is tried again, from the start, until
// the patience is at its end. One change of an outbox runs at a time.
func (o *Outbox) change(ctx context.Context, p Patience, f func(context.Context, *attempt) error) error {
	p = p.withDefaults()
	for until := o.clock.Mono() + p.Wait; ; {
		err := o.try(ctx, p, until, f)
		var own *refusal
		switch {
		case !busy(err), errors.As(err, &own):
			return err
		case o.clock.Mono()+p.Pause >= until:
			return unavailable(err, "others hold what this has to lock; nothing was changed: try again (`keyline doctor` names long transactions)")
		}
		if err := clock.Sleep(ctx, o.clock, p.Pause); err != nil {
			return err
		}
	}
}

func (o *Outbox) try(ctx context.Context, p Patience, until time.Duration, f func(context.Context, *attempt) error) error {
	tx, err := o.conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return unavailable(err, "begin")
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	a := &attempt{o: o, tx: tx, p: p, until: until}
	// row_security off: a policy that would hide rows is an error, not rows that are left behind.
	if err := a.run(ctx, fmt.Sprintf(`set local row_security = off; set local statement_timeout = 0;
		set local idle_in_transaction_session_timeout = %d`, (o.believed+p.Pause).Milliseconds())); err != nil {
		return err
	}
	if err := a.lockTimeout(ctx, a.remaining()); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock(hashtextextended('keyline outbox change ' || to_regclass($1)::oid, 0))`, o.name); err != nil {
		return failed("wait for another change of this outbox", err)
	}
	if err := f(ctx, a); err != nil {
		return err
	}
	return failed("commit", tx.Commit(ctx))
}

// look runs f on a snapshot that changes nothing.
func (o *Outbox) look(ctx context.Context, f func(pgx.Tx, *table) error) error {
	tx, err := o.conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return unavailable(err, "begin")
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := tx.Exec(ctx, `set local row_security = off`); err != nil {
		return failed("look", err)
	}
	t, err := o.read(ctx, tx, o.name)
	if err != nil {
		return err
	}
	return f(tx, t)
}

// run runs statements of ours.
func (a *attempt) run(ctx context.Context, sql string) error {
	_, err := a.tx.Exec(ctx, sql)
	return failed("change the outbox", err)
}

func (a *attempt) remaining() time.Duration {
	return max(a.until-a.o.clock.Mono(), time.Millisecond)
}

func (a *attempt) lockTimeout(ctx context.Context, d time.Duration) error {
	return a.run(ctx, fmt.Sprintf(`set local lock_timeout = %d`, max(d.Milliseconds(), 1)))
}

// path lets the settings' expressions mean here what they mean in the functions.
func (a *attempt) path(ctx context.Context, s *statement) error {
	return a.run(ctx, `set local search_path = `+s.Path)
}

// lockDrainers waits until no drainer holds the lock, and keeps those that come later waiting. Writers go on.
func (a *attempt) lockDrainers(ctx context.Context, s *statement) error {
	if err := a.lockTimeout(ctx, a.remaining()); err != nil {
		return err
	}
	err := a.run(ctx, s.render("lock_drainers"))
	if sqlState(err) == "55P03" {
		return unavailable(err, "a drainer holds its lock for longer than this waited; nothing was changed")
	}
	a.o.reached("drainers locked")
	return err
}

// lockTable takes a lock on the table that writers have to queue behind: for a moment at a time, between which they
// have the table. The drainers' lock is kept meanwhile.
func (a *attempt) lockTable(ctx context.Context, t *table, lock string) error {
	patience := a.p.Lock
	for {
		if err := a.lockTimeout(ctx, patience); err != nil {
			return err
		}
		inner, err := a.tx.Begin(ctx)
		if err != nil {
			return failed("lock the table", err)
		}
		_, err = inner.Exec(ctx, lock)
		if err == nil {
			if err := inner.Commit(ctx); err != nil {
				return failed("lock the table", err)
			}
			a.o.reached("table locked")
			return a.run(ctx, fmt.Sprintf(`set local statement_timeout = %d`, a.p.Hold.Milliseconds()))
		}
		if rollback := inner.Rollback(ctx); rollback != nil || sqlState(err) != "55P03" || a.remaining() <= a.p.Pause {
			return failed("lock the table", err)
		}
		if patience, err = a.patience(ctx, t); err != nil {
			return err
		}
		if err := clock.Sleep(ctx, a.o.clock, a.p.Pause); err != nil {
			return err
		}
	}
}

// patience is how long the next try waits: an autovacuum of the table gives way only to whoever has waited for longer than deadlock_timeout.
func (a *attempt) patience(ctx context.Context, t *table) (time.Duration, error) {
	var ms int64
	err := a.tx.QueryRow(ctx, `select case when exists (
		select from pg_locks l join pg_stat_activity s on s.pid = l.pid
		where l.relation = $1 and l.granted and s.backend_type = 'autovacuum worker')
		then (select setting::bigint + 500 from pg_settings where name = 'deadlock_timeout') else 0 end`, t.OID).Scan(&ms)
	return max(a.p.Lock, time.Duration(ms)*time.Millisecond), failed("lock the table", err)
}
