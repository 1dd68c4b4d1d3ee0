package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// What a registry change leaves to be done on its records, kept in
// consumers.sweep until it is done.
const (
	sweepWake     = "wake"
	sweepBackfill = "backfill"
	sweepClear    = "clear"
)

// sweepChunk is how many records one transaction of a sweep locks: appenders
// to them wait for it.
const sweepChunk = 500

// Sweep does one chunk of what registry changes have left to be done. Any
// worker may call it, at any time: two never do the same consumer's at once.
//
// more: there is more to do now. Without it, call again within seconds: there may be
// records left that somebody has locked, and other processes change the registry too.
func (s *Store) Sweep(ctx context.Context) (more bool, err error) {
	waiting := []int32{}
	for {
		var (
			consumer int32
			outcome  string
		)
		err := autocommit(ctx, s.hot, s.q("sweep"), []any{sweepChunk, waiting}, one(&consumer, &outcome))
		switch {
		case err != nil:
			return false, translate("sweep", err)
		case outcome == "":
			return false, nil
		case outcome == "waiting":
			waiting = append(waiting, consumer)
			continue
		case outcome == "backfilled":
			return true, s.activate(ctx, consumer)
		}
		return true, nil
	}
}

// errNotBackfilled ends an activation that another worker or an operator has overtaken.
var errNotBackfilled = errors.New("the consumer is no longer being backfilled")

// activate ends a backfill: every record has its row by now, or has never been
// flushed, so that a consumer without a row stands at its beginning.
func (s *Store) activate(ctx context.Context, consumer int32) error {
	err := s.changeRegistry(ctx, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, s.q("activate"), consumer)
		if err == nil && tag.RowsAffected() == 0 {
			return errNotBackfilled
		}
		return err
	})
	if err != nil && !errors.Is(err, errNotBackfilled) {
		return fmt.Errorf("activate consumer %d: %w", consumer, err)
	}
	return nil
}
