package clientsql

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/internal/clock"
)

// changeLockTimeout is how long a registry change waits for others, such as flushes, which
// meanwhile queue behind it; then it steps back and tries again.
const changeLockTimeout = "200ms"

// Silence is how long the server waits for the next word of whoever changes the registry. That is several round trips, and others wait
// behind them: all flushes, where it holds the barrier. Of a process that is frozen, or that the network has lost, nobody else would end
// it for hours. Nothing is changed then, and whoever comes to again finds its connection closed.
const Silence = 5 * time.Second

const changePatience = "select set_config('lock_timeout', $1, true), set_config('idle_in_transaction_session_timeout', $2, true)"

// Beginner begins transactions.
type Beginner interface {
	BeginTx(context.Context, pgx.TxOptions) (pgx.Tx, error)
}

// ChangeRegistry runs f in a transaction in which each statement sees what was
// committed before it, whatever the role's default is; and again, after growing
// pauses, where inTheWay says of its error that somebody else was. The runtime's registry changes go by it too.
func ChangeRegistry(ctx context.Context, db Beginner, c clock.Clock, random *clock.Rand, inTheWay func(error) bool, f func(pgx.Tx) error) error {
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := pgx.BeginTxFunc(ctx, db, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, changePatience, changeLockTimeout, Silence.String()); err != nil {
				return err
			}
			return f(tx)
		})
		if err == nil || !inTheWay(err) {
			return err
		}
		if stop := clock.Sleep(ctx, c, time.Duration(float64(pause)*(0.5+random.Float64()))); stop != nil {
			return errors.Join(err, stop)
		}
	}
}
