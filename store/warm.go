package store

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/internal/core"
)

// warmFor is the longest that a worker takes to be warm: it is better cold than late.
const warmFor = time.Second

// warm connects the sessions that deliveries go by, and has them compile and plan what they will run, before anything waits
// for it. It is asked for nothing, so it changes nothing; what fails will say so when it is meant.
func (s *Store) warm(ctx context.Context, worker int64, most time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	var wg sync.WaitGroup
	for _, f := range []func() error{
		func() error { return s.warmClaims(ctx, worker) },
		func() error { return s.warmFlushes(ctx, worker) },
		func() error {
			_, err := s.Load(ctx, []core.LoadRequest{{Limit: 1}})
			return err
		},
	} {
		wg.Go(func() {
			if err := f(); err != nil {
				s.log.DebugContext(ctx, "a session begins cold", "error", err)
			}
		})
	}
	wg.Wait()
}

func (s *Store) warmClaims(ctx context.Context, worker int64) error {
	var b pgx.Batch
	b.Queue(s.q("claim"), worker, 1, []int32{}, "infinity", nil) // from the end of time on nothing is due
	b.Queue(s.q("claim"), worker, 1, []int32{}, "-infinity", 0)  // there is no record 0
	b.Queue(s.q("load_record"), worker, 0, 1)
	conn, err := s.claims.Acquire(ctx)
	if err != nil {
		return translate("warm claims", err)
	}
	err = conn.SendBatch(ctx, &b).Close()
	conn.Release()
	if err == nil {
		_, _, err = s.NextDue(ctx, []int32{})
	}
	return translate("warm claims", err)
}

func (s *Store) warmFlushes(ctx context.Context, worker int64) error {
	args, err := newArguments(0).list(worker, s.epoch.Load(), 0, 0)
	if err != nil {
		return err
	}
	_, err = s.flushes.Exec(ctx, s.q("flush"), args...)
	return translate("warm flushes", err)
}
