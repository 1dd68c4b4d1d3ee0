package store

import (
	"context"
	"time"
)

// Backlog is what waits in the whole installation.
type Backlog struct {
	// OldestAge is how long the oldest due record has been unclaimed; 0: none is due.
	OldestAge time.Duration
	// DeadLetters and Parked are counts that stop at 10,001.
	DeadLetters, Parked int64
}

// Backlog reads what waits. It is cheap at any size.
func (s *Store) Backlog(ctx context.Context) (Backlog, error) {
	var b Backlog
	var age float64
	if err := s.lease.QueryRow(ctx, s.q("backlog")).Scan(&age, &b.DeadLetters, &b.Parked); err != nil {
		return b, translate("read backlog", err)
	}
	b.OldestAge = max(time.Duration(age*float64(time.Second)), 0)
	return b, nil
}
