package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"

	"github.com/keylinehq/keyline/internal/dsn"
)

// Arming is the session by which a worker is elected and sleeps (core.Arming). It
// is a connection of its own, direct, without time-outs, since a session lock
// lives and dies with it.
type Arming struct {
	store *Store
	// closing ends a call under way when Close is called.
	closing context.Context
	end     context.CancelFunc

	mu   sync.Mutex // held during a call
	conn *pgx.Conn
	last uint32 // process id of the latest session, which may be there yet
}

func (s *Store) armConfig(cfg Config) (*pgx.ConnConfig, error) {
	arm := cfg.Pool.ConnConfig.Copy()
	if cfg.ListenURL == "" {
		s.armBefore = cfg.Pool.BeforeConnect
	} else {
		var err error
		if arm, err = listenConfig(cfg.ListenURL); err != nil {
			return nil, fmt.Errorf("listen url: %w", err)
		}
	}
	s.ours(arm)
	arm.DefaultQueryExecMode = pgx.QueryExecModeExec
	// A request that is given up is cancelled on the server; the session stays.
	arm.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: closeGrace}
	}
	return arm, nil
}

// listenConfig reads a URL as a pool does, so that its pool_ parameters do not reach the server.
func listenConfig(url string) (*pgx.ConnConfig, error) {
	cfg, err := dsn.Pool(url)
	if err != nil {
		return nil, err
	}
	return cfg.ConnConfig, nil
}

// NewArming returns the arming session, which connects at its first Release.
func (s *Store) NewArming() *Arming {
	ctx, cancel := context.WithCancel(context.Background())
	return &Arming{store: s, closing: ctx, end: cancel}
}

var (
	errNotArmed = errors.New("arming session is not connected")
	errClosed   = errors.New("arming session is closed")
)

// Elect implements core.Arming.
func (a *Arming) Elect(ctx context.Context) error { return a.exec(ctx, "elect", a.store.q("elect")) }

// Request implements core.Arming.
func (a *Arming) Request(ctx context.Context) error { return a.exec(ctx, "arm", a.store.q("arm")) }

// Ping implements core.Arming.
func (a *Arming) Ping(ctx context.Context) (crowded bool, err error) {
	err = a.call(ctx, "ping", func(ctx context.Context) error {
		return a.conn.QueryRow(ctx, a.store.q("ping")).Scan(&crowded)
	})
	return crowded, err
}

// Release implements core.Arming. A session that does not answer is closed,
// which gives up its locks in any case, and replaced.
func (a *Arming) Release(ctx context.Context) error {
	ctx, done, err := a.begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	if a.conn != nil && !a.conn.IsClosed() {
		if _, err := a.conn.Exec(ctx, "select pg_advisory_unlock_all()"); err == nil {
			return nil
		}
		a.drop(ctx)
	}
	return a.connect(ctx)
}

// Close implements core.Arming.
func (a *Arming) Close() {
	a.end()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.drop(context.Background())
}

// closeGrace bounds a farewell to a server that may not answer.
const closeGrace = 2 * time.Second

// begin takes the session for one call, which ends at the latest with Close.
func (a *Arming) begin(ctx context.Context) (_ context.Context, done func(), _ error) {
	a.mu.Lock()
	if a.closing.Err() != nil {
		a.mu.Unlock()
		return nil, nil, errClosed
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(a.closing, cancel)
	return ctx, func() {
		stop()
		cancel()
		a.mu.Unlock()
	}, nil
}

func (a *Arming) exec(ctx context.Context, what, sql string) error {
	return a.call(ctx, what, func(ctx context.Context) error {
		_, err := a.conn.Exec(ctx, sql)
		return err
	})
}

// call runs one statement on the session, if there is one.
func (a *Arming) call(ctx context.Context, what string, run func(context.Context) error) error {
	ctx, done, err := a.begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	if a.conn == nil || a.conn.IsClosed() {
		return fmt.Errorf("%s: %w", what, errNotArmed)
	}
	err = run(ctx)
	if err != nil && ctx.Err() != nil { // the server answers a cancellation with an error of its own
		return fmt.Errorf("%s: %w: %w", what, context.Cause(ctx), err)
	}
	return translate(what, err)
}

func (a *Arming) connect(ctx context.Context) error {
	arm := a.store.arm
	if before := a.store.armBefore; before != nil {
		arm = arm.Copy()
		if err := before(ctx, arm); err != nil {
			return translate("connect to arm", err)
		}
	}
	conn, err := pgx.ConnectConfig(ctx, arm)
	if err != nil {
		return translate("connect to arm", err)
	}
	a.conn = conn
	_, err = conn.Exec(ctx, a.store.q("arm_session"))
	if err == nil && a.last != 0 {
		// The server may believe in the session before for hours yet, and
		// meanwhile nobody else could be elected.
		_, err = conn.Exec(ctx, a.store.q("end_session"), int64(a.last), a.store.applicationName())
	}
	if err != nil {
		a.drop(ctx)
		return translate("connect to arm", err)
	}
	a.last = conn.PgConn().PID()
	return nil
}

func (a *Arming) drop(ctx context.Context) {
	if a.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeGrace)
	defer cancel()
	if err := a.conn.Close(ctx); err != nil {
		a.store.log.Debug("close arming session", "error", err)
	}
	a.conn = nil
}
