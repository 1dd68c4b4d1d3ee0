package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/dsn"
	"github.com/keylinehq/keyline/migrations"
)

// requireURL is the database that a command is about.
func (a *app) requireURL(cmd *cobra.Command) (string, error) {
	if a.global.databaseURL == "" {
		return "", usagef(cmd, "no database: give --database-url or set DATABASE_URL (`keyline dev` runs one to play with)")
	}
	return a.global.databaseURL, nil
}

// connect opens one connection for a command that needs no more.
func (a *app) connect(cmd *cobra.Command) (*pgx.Conn, error) {
	url, err := a.requireURL(cmd)
	if err != nil {
		return nil, err
	}
	if err := migrations.CheckSchemaName(a.global.schema); err != nil {
		return nil, &usageError{err: err}
	}
	cfg, err := dsn.One(url)
	if err != nil {
		return nil, &usageError{err: err}
	}
	conn, err := pgx.ConnectConfig(cmd.Context(), cfg)
	return conn, unreachable(err)
}

// disconnect ends a connection when its command is over. Where that was interrupted in the middle of a statement, the server hears of it
// before this program ends; otherwise it would carry the statement out all the same.
func disconnect(ctx context.Context, conn *pgx.Conn) {
	_ = conn.Close(context.WithoutCancel(ctx))
	<-conn.PgConn().CleanupDone()
}

// poolConfig is how a worker or a reader connects.
func (a *app) poolConfig(cmd *cobra.Command) (*pgxpool.Config, error) {
	url, err := a.requireURL(cmd)
	if err != nil {
		return nil, err
	}
	if err := migrations.CheckSchemaName(a.global.schema); err != nil {
		return nil, &usageError{err: err}
	}
	return parsePool(url)
}

// txConnections is how many transactions of HandleTx run at once where the
// connection string does not say (pool_max_conns).
const txConnections = 16

func parsePool(url string) (*pgxpool.Config, error) {
	cfg, err := dsn.Pool(url)
	if err != nil {
		return nil, &usageError{err: err}
	}
	if !strings.Contains(url, "pool_max_conns") {
		cfg.MaxConns = txConnections
	}
	return cfg, nil
}

// unreachable classes an error of connecting.
func unreachable(err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	var state interface{ SQLState() string }
	switch {
	case noDatabase(err):
		return fmt.Errorf("%w: %w", keyline.ErrNotFound, err)
	case errors.As(err, &state) && strings.HasPrefix(state.SQLState(), "28"): // who are you
		return err
	}
	return fmt.Errorf("%w: %w", keyline.ErrUnavailable, err)
}

// lacksRights reports whether the server has refused what the login may not do.
func lacksRights(err error) bool {
	var state interface{ SQLState() string }
	return errors.As(err, &state) && state.SQLState() == "42501"
}

// installed refuses a database whose schema is missing, or one that this binary cannot work on.
func (a *app) installed(ctx context.Context, conn *pgx.Conn) error {
	s, err := migrations.Read(ctx, conn, a.global.schema)
	if err != nil && lacksRights(err) {
		return err
	}
	if err != nil {
		return unreachable(err)
	}
	if s.Current == 0 {
		return fmt.Errorf("%w: schema %s is not installed in this database: run `keyline migrate up`", keyline.ErrNotFound, a.global.schema)
	}
	return s.Fit()
}
