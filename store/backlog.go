package store

import (
	"context"
	"time"
)

// Backlog is what waits in the whole installation, and whether anybody runs it.
type Backlog struct {
	// OldestAge is how long the oldest due record has been unclaimed; 0: none is due.
	OldestAge time.Duration
	// DeadLetters and Parked are counts that stop at 10,001.
	DeadLetters, Parked int64
	// Unhosted says of each consumer that is active or backfilling, and not declared only, whether no live worker runs it.
	Unhosted map[string]bool
}

// Backlog reads what waits. It is cheap at any size.
func (s *Store) Backlog(ctx context.Context) (Backlog, error) {
	return s.backlog(ctx, s.lease)
}

func (s *Store) backlog(ctx context.Context, on rower) (Backlog, error) {
	var b Backlog
	var age float64
	if err := on.QueryRow(ctx, s.q("backlog"), planAnew).Scan(&age, &b.DeadLetters, &b.Parked, &b.Unhosted); err != nil {
		return b, translate("read backlog", err)
	}
	b.OldestAge = max(time.Duration(age*float64(time.Second)), 0)
	return b, nil
}
