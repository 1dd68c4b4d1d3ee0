package store

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keylinehq/keyline/internal/clock"
)

var errAway = errors.New("the database is away")

// Promise: a recovery believes what it saw without a gap. Where the database was away while it watched, or its own process was, the
// silence is nobody's fault: nobody is marked lost for it.
func TestARecoveryMarksNobodyForASilenceThatItDidNotWatch(t *testing.T) {
	const lease = time.Minute
	for _, gap := range []string{"the database was away", "the process was frozen"} {
		t.Run(gap, func(t *testing.T) {
			r := newRig(t)
			var away atomic.Bool
			pool := r.db.NewPool(func(c *pgxpool.Config) {
				c.PrepareConn = func(context.Context, *pgx.Conn) (bool, error) {
					if away.Load() {
						return false, errAway
					}
					return true, nil
				}
			})
			o, err := NewOperate(pool, r.Schema())
			if err != nil {
				t.Fatal(err)
			}
			watch := clock.NewFake(time.Unix(0, 0))
			o.s.clock = &databaseClock{Clock: watch}
			silent := r.join("silent")
			r.exec("update keyline.workers set beat_at = clock_timestamp() - interval '1 hour', lease = $2 where id = $1", silent, lease)
			advance := func(d time.Duration) {
				t.Helper()
				if err := watch.BlockUntil(t.Context(), 1); err != nil {
					t.Fatal(err)
				}
				watch.Advance(d)
			}
			type answer struct {
				Recovered
				error
			}
			done := make(chan answer, 1)
			go func() {
				out, err := o.Recover(t.Context(), "olga", "")
				done <- answer{out, err}
			}()
			if gap == "the database was away" {
				advance(lease / 3)
				if err := watch.BlockUntil(t.Context(), 1); err != nil {
					t.Fatal(err)
				}
				away.Store(true)
				advance(lease / 3)
				a := soon(r, done, "an answer")
				away.Store(false)
				if !errors.Is(a.error, errAway) || len(a.Workers) != 0 {
					t.Errorf("%+v", a)
				}
			} else {
				advance(lease)
				if err := watch.BlockUntil(t.Context(), 1); err != nil { // it watches again from the start
					t.Fatal(err)
				}
				r.exec("update keyline.workers set beat = beat + 1, beat_at = clock_timestamp() where id = $1", silent)
				advance(lease / 3)
				if a := soon(r, done, "an answer"); a.error != nil || len(a.Workers) != 0 {
					t.Errorf("%+v", a)
				}
			}
			if got := get[string](r, "select status from keyline.workers where id = $1", silent); got != "live" {
				t.Errorf("it is %s", got)
			}
			// Watched to the end, it is lost.
			r.exec("update keyline.workers set beat_at = clock_timestamp() - interval '1 hour' where id = $1", silent)
			go func() {
				out, err := o.Recover(t.Context(), "olga", "")
				done <- answer{out, err}
			}()
			for range 3 {
				advance(lease / 3)
			}
			if a := soon(r, done, "an answer"); a.error != nil || len(a.Workers) != 1 {
				t.Errorf("%+v", a)
			}
		})
	}
}
