package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// stress runs everything that locks against everything else on a few records.
type stress struct {
	*rig
	consumer  int32
	ended     atomic.Bool
	deadlocks atomic.Int64
	done      map[string]*atomic.Int64
}

func (s *stress) count(what string) { s.done[what].Add(1) }

// check reports an error unless it is one that the runtime takes for granted.
func (s *stress) check(what string, err error) {
	switch {
	case err == nil:
		s.count(what)
	case sqlState(err) == stateDeadlock:
		s.deadlocks.Add(1)
		s.Errorf("%s: %v", what, err)
	case sqlState(err) == stateLockTimeout, errors.Is(err, context.Canceled), errors.Is(err, keylinetype.ErrConflict):
	default:
		s.Errorf("%s: %v", what, err)
	}
}

const stressKeys = 12

// TestLockOrder: appends of one and of many events, claims, flushes, commands,
// recovery, orphan searches, sweeps, status changes and HandleTx transactions, all at once: nothing deadlocks.
func TestLockOrder(t *testing.T) {
	r := newRig(t)
	r.exec("alter database " + r.db.Name + " set deadlock_timeout = '20ms'")
	s := &stress{rig: on(t, r.db), done: map[string]*atomic.Int64{}}
	s.consumer = r.register(definition("c", func(d *Definition) { d.Transactional = true }), definition("d"))
	for _, what := range []string{"append", "append many", "command", "settle", "hand back", "release", "keep", "transaction", "recover", "orphans", "sweep", "status"} {
		s.done[what] = &atomic.Int64{}
	}
	rnd := seeded(t)
	loops := []func(context.Context, *clock.Rand){
		s.appends, s.appends, s.appendsMany, s.commands, s.work, s.work, s.recovers, s.sweeps, s.statuses,
	}
	var wg sync.WaitGroup
	for _, loop := range loops {
		own := clock.NewRand(uint64(rnd.Int64N(1 << 60)))
		wg.Go(func() {
			for !s.ended.Load() {
				loop(t.Context(), own)
			}
		})
	}
	enough := func() bool {
		for _, n := range s.done {
			if n.Load() < 15 {
				return false
			}
		}
		return true
	}
	end := clock.Real().Mono() + 90*time.Second
	for c := clock.Real(); !enough() && c.Mono() < end && !t.Failed(); {
		_ = clock.Sleep(t.Context(), c, 20*time.Millisecond)
	}
	s.ended.Store(true)
	wg.Wait()
	var counts []string
	for what, n := range s.done {
		counts = append(counts, fmt.Sprintf("%s %d", what, n.Load()))
		if n.Load() == 0 {
			t.Errorf("%s never got through", what)
		}
	}
	t.Log(strings.Join(counts, ", "))
	if n := get[int64](r, "select deadlocks from pg_stat_database where datname = current_database()"); n+s.deadlocks.Load() != 0 {
		t.Errorf("%d deadlocks", n)
	}
}

func (s *stress) appends(ctx context.Context, rnd *clock.Rand) {
	_ = clock.Sleep(ctx, clock.Real(), time.Duration(rnd.IntN(4))*time.Millisecond)
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		s.check("append", err)
		return
	}
	defer func() { _ = tx.Rollback(ctx) }()
	// One record per transaction, perhaps more than one event: several in any order is the application's risk.
	key := keyOf(rnd.IntN(stressKeys))
	for range 1 + rnd.IntN(3) {
		if _, err = tx.Exec(ctx, s.named("select keyline.append($1, 't', '{}')"), key); err != nil {
			s.check("append", err)
			return
		}
	}
	s.check("append", tx.Commit(ctx))
}

func (s *stress) appendsMany(ctx context.Context, rnd *clock.Rand) {
	_ = clock.Sleep(ctx, clock.Real(), time.Duration(rnd.IntN(8))*time.Millisecond)
	var items []string
	for range 1 + rnd.IntN(8) {
		items = append(items, fmt.Sprintf(`{"record_key": %q, "event_type": "t", "payload": {}}`, keyOf(rnd.IntN(stressKeys))))
	}
	_, err := s.pool.Exec(ctx, s.named("select * from keyline.append_many($1)"), "["+strings.Join(items, ",")+"]")
	s.check("append many", err)
}

func (s *stress) commands(ctx context.Context, rnd *clock.Rand) {
	id, err := s.FindRecord(ctx, keylinetype.Key{Record: keyOf(rnd.IntN(stressKeys))})
	if errors.Is(err, keylinetype.ErrNotFound) {
		return
	}
	if err == nil {
		_, err = s.Command(ctx, core.Command{Record: id, Kind: core.CommandRetry, Actor: "op"}, "r")
	}
	s.check("command", err)
}

// work claims a few records and ends their claims in one way or another.
func (s *stress) work(ctx context.Context, rnd *clock.Rand) {
	claims, err := s.Claim(ctx, core.ClaimRequest{Worker: s.me, Limit: 1 + rnd.IntN(6), Unbounded: true})
	if err != nil {
		s.check("keep", err)
		return
	}
	var requests []core.LoadRequest
	for _, c := range claims {
		requests = append(requests, core.LoadRequest{Claim: c, Limit: 10})
	}
	loaded, err := s.Load(ctx, requests)
	if err != nil {
		s.check("keep", err)
		return
	}
	epoch, _, err := s.News(ctx, []int64{})
	s.check("keep", err)
	var wg sync.WaitGroup
	for _, l := range loaded {
		f := settle(l)
		f.Then = core.Disposition(rnd.IntN(4))
		f.Upserts = []core.Checkpoint{{Record: l.Record, Consumer: s.consumer, Seq: l.Head, State: core.Ready}}
		for _, c := range l.Commands {
			f.Applied = append(f.Applied, core.AppliedCommand{ID: c.ID, Done: true})
		}
		if f.Then == core.Keep {
			s.transaction(ctx, l)
		}
		wg.Add(1)
		s.Flush(&f, epoch, func(res core.FlushResult) {
			if res.Status == core.FlushGone || (f.Then == core.Keep && res.Status == core.FlushKept) {
				s.count([]string{"keep", "settle", "hand back", "release"}[f.Then])
			}
			wg.Done()
		})
	}
	wg.Wait()
}

// transaction is a HandleTx in the middle of it all.
func (s *stress) transaction(ctx context.Context, l core.Loaded) {
	w := &core.Work{Record: l.Record, Token: l.Token, Consumer: &core.Consumer{ID: s.consumer}}
	for _, c := range l.Checkpoints {
		if c.Consumer == s.consumer {
			w.Fence = c.Seq
		}
	}
	out := s.RunTx(ctx, w, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "select 1")
		return err
	}, func(error) core.Booking {
		return core.Booking{Checkpoint: core.Checkpoint{Record: l.Record, Consumer: s.consumer, Seq: w.Fence, State: core.Ready}}
	})
	if !out.Fenced {
		s.check("transaction", out.Err)
	}
}

func (s *stress) recovers(ctx context.Context, rnd *clock.Rand) {
	lost := s.join("lost")
	_, err := s.Claim(ctx, core.ClaimRequest{Worker: lost, Limit: 3, Unbounded: true})
	s.check("recover", err)
	if rnd.IntN(2) == 0 {
		s.check("recover", s.Leave(ctx, lost))
	} else if _, err := s.MarkLost(ctx, core.Beat{Worker: lost}); err != nil {
		s.check("recover", err)
	}
	_, err = s.Recover(ctx)
	s.check("recover", err)
	_, err = s.HandBackOrphans(ctx, s.me, nil)
	s.check("orphans", err)
}

func (s *stress) sweeps(ctx context.Context, _ *clock.Rand) {
	more, err := s.Sweep(ctx)
	s.check("sweep", err)
	if !more {
		_ = clock.Sleep(ctx, clock.Real(), time.Millisecond)
	}
}

func (s *stress) statuses(ctx context.Context, rnd *clock.Rand) {
	to := []core.Status{core.Paused, core.Active, core.Disabled, core.Active}[rnd.IntN(4)]
	s.check("status", s.SetStatus(ctx, "d", to, "op", "stress"))
	_ = clock.Sleep(ctx, clock.Real(), 40*time.Millisecond)
}
