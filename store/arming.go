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
)

// Arming is the sentinel's session (core.Arming). It is a connection of its
// own, direct, without time-outs, since a session lock lives and dies with it.
type Arming struct {
	store *Store

	mu   sync.Mutex
	conn *pgx.Conn
}

func (s *Store) armConfig(cfg Config) (*pgx.ConnConfig, error) {
	arm := cfg.Pool.ConnConfig.Copy()
	if cfg.ListenURL != "" {
		var err error
		if arm, err = pgx.ParseConfig(cfg.ListenURL); err != nil {
			return nil, fmt.Errorf("listen url: %w", err)
		}
	}
	arm.RuntimeParams["application_name"] = s.applicationName()
	arm.DefaultQueryExecMode = pgx.QueryExecModeExec
	// A request that is given up is cancelled on the server; the session stays.
	arm.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: closeGrace}
	}
	return arm, nil
}

// NewArming returns the arming session, which connects when it is first used.
func (s *Store) NewArming() *Arming { return &Arming{store: s} }

// Request implements core.Arming.
func (a *Arming) Request(ctx context.Context) error {
	conn, err := a.connect(ctx)
	if err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, a.store.q("arm")); err != nil {
		return translate("arm", err)
	}
	return nil
}

// Release implements core.Arming. Closing the session gives up its locks in
// any case, so a release that fails on the session closes it.
func (a *Arming) Release(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.conn == nil || a.conn.IsClosed() {
		a.conn = nil
		return nil
	}
	if _, err := a.conn.Exec(ctx, "select pg_advisory_unlock_all()"); err != nil {
		return errors.Join(translate("disarm", err), a.drop())
	}
	return nil
}

// Ping implements core.Arming.
func (a *Arming) Ping(ctx context.Context) error {
	a.mu.Lock()
	conn := a.conn
	a.mu.Unlock()
	if conn == nil {
		return errors.New("arming session is not connected")
	}
	return translate("ping", conn.Ping(ctx))
}

// Close implements core.Arming.
func (a *Arming) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.drop(); err != nil {
		a.store.log.Debug("close arming session", "error", err)
	}
}

// closeGrace bounds a farewell to a server that may not answer.
const closeGrace = 2 * time.Second

func (a *Arming) drop() error {
	if a.conn == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeGrace)
	defer cancel()
	err := a.conn.Close(ctx)
	a.conn = nil
	return err
}

func (a *Arming) connect(ctx context.Context) (*pgx.Conn, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.conn != nil && !a.conn.IsClosed() {
		return a.conn, nil
	}
	conn, err := pgx.ConnectConfig(ctx, a.store.arm)
	if err != nil {
		return nil, translate("connect to arm", err)
	}
	if _, err := conn.Exec(ctx, a.store.q("arm_session")); err != nil {
		return nil, errors.Join(translate("connect to arm", err), conn.Close(ctx))
	}
	a.conn = conn
	return conn, nil
}
