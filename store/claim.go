package store

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/core"
)

// lowerBound remembers where the last claim ended: index entries of mailboxes
// claimed since are dead, and where a long transaction pins the horizon nothing removes
// them. With it a drain of 200k records under a pinned horizon ran at 35k events/s, without it at 27k.
type lowerBound struct {
	clock clock.Clock

	mu     sync.Mutex
	due    time.Time     // zero: -infinity
	looked time.Time     // when a claim last looked at everything
	every  time.Duration // how long until one does so unasked
}

// Claims look at everything once a second. A transaction that appended before
// the bound may commit after it was passed, and has to be found.
//
// Under a pinned horizon such a look reads all that has died since, and takes longer and longer: then
// it comes so much more seldom that it takes a fiftieth of the time (unboundedShare), but
// at least every ten seconds. This is about full load, where whatever is due waits for its turn; a
// claim that finds less than it may take looks at everything in any case.
const (
	unboundedEvery = time.Second
	unboundedRare  = 10 * time.Second
	unboundedShare = 50
)

func (b *lowerBound) from(unbounded bool) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.clock.Now()
	if unbounded || now.Sub(b.looked) >= max(b.every, unboundedEvery) {
		b.looked, b.due = now, time.Time{}
	}
	return b.due
}

// took notes how long a look at everything was under way.
func (b *lowerBound) took(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.every = min(max(unboundedShare*d, unboundedEvery), unboundedRare)
}

func (b *lowerBound) passed(due time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if due.After(b.due) {
		b.due = due
	}
}

// Claim implements core.Deliveries. A bounded claim that finds less than it
// may take looks again at everything, so that "nothing" always means nothing.
func (s *Store) Claim(ctx context.Context, r core.ClaimRequest) ([]core.Claim, error) {
	from := s.bound.from(r.Unbounded)
	claims, err := s.claim(ctx, r, from)
	if err != nil || r.Record != 0 || from.IsZero() || len(claims) >= r.Limit {
		return claims, err
	}
	r.Limit -= len(claims)
	more, err := s.claim(ctx, r, s.bound.from(true))
	if err != nil && len(claims) > 0 {
		return claims, nil // what is claimed is ours; the next call will see the error
	}
	return append(claims, more...), err
}

func (s *Store) claim(ctx context.Context, r core.ClaimRequest, from time.Time) ([]core.Claim, error) {
	var c claiming
	now, began := s.clock.Now(), s.clock.Mono()
	s.calls.claims.Add(1)
	err := autocommit(ctx, s.claims, s.q("claim"), c.arguments(r, from), func(rows pgx.Rows) error {
		err := c.scan(rows)
		if t := c.due.finite(); err == nil && t.After(c.last) && t.Before(now.Add(unboundedEvery)) {
			c.last = t
		}
		return err
	})
	if err != nil {
		return nil, translate("claim", err)
	}
	if r.Record == 0 && from.IsZero() {
		s.bound.took(s.clock.Mono() - began)
	}
	if len(c.claims) >= r.Limit && r.Record == 0 {
		s.bound.passed(c.last)
	}
	return c.claims, nil
}

// claiming collects the rows of a claim.
type claiming struct {
	claims []core.Claim
	last   time.Time // the latest due time

	row  core.Claim
	due  pgtypeTime
	into []any
}

func (c *claiming) arguments(r core.ClaimRequest, from time.Time) []any {
	var only *int64
	var after any = "-infinity"
	if r.Record != 0 {
		only = &r.Record
	}
	if !from.IsZero() {
		after = from
	}
	return []any{r.Worker, r.Limit, r.Hosted, after, only}
}

func (c *claiming) scan(rows pgx.Rows) error {
	if c.into == nil {
		c.into = []any{&c.row.Record, &c.row.Token, &c.row.Crashes, &c.row.Unclean, &c.due}
	}
	if err := rows.Scan(c.into...); err != nil {
		return err
	}
	c.claims = append(c.claims, c.row)
	return nil
}

// ClaimRecord implements core.Deliveries: the claim, its commit, and then the
// read, sent together. A record with more than its events is for Load to read.
func (s *Store) ClaimRecord(ctx context.Context, r core.ClaimRequest, limit int) ([]core.Claim, []core.Loaded, error) {
	var (
		c               claiming
		most            = s.ahead.most(limit)
		l               = newLoading(1, limit, most)
		committed, rare bool
		b               pgx.Batch
	)
	b.Queue("begin isolation level read committed")
	b.Queue(s.q("claim"), c.arguments(r, time.Time{})...).Query(each(c.scan))
	b.Queue("commit").Exec(func(pgconn.CommandTag) error { committed = true; return nil })
	b.Queue(s.q("load_record"), r.Worker, r.Record, most).Query(each(func(rows pgx.Rows) error { return l.record(rows, &rare) }))
	s.calls.claims.Add(1)
	conn, err := s.claims.Acquire(ctx)
	if err != nil {
		return nil, nil, translate("claim record", err)
	}
	defer conn.Release()
	if err := conn.SendBatch(ctx, &b).Close(); err != nil {
		err = errors.Join(err, rollback(ctx, conn))
		if committed {
			s.log.Debug("a claimed record is loaded again", "record", r.Record, "error", err)
			return c.claims, nil, nil
		}
		return nil, nil, translate("claim record", err)
	}
	if len(c.claims) == 0 {
		return nil, nil, nil // what was read, if anything, this worker had before
	}
	if rare {
		return c.claims, nil, nil
	}
	s.ahead.read(l.dropped)
	l.order()
	return c.claims, s.sound(l.loaded), nil
}

// mostMicros is what a duration can hold: 292 years. A timestamp can be farther away.
const mostMicros = math.MaxInt64 / int64(time.Microsecond)

// NextDue implements core.Deliveries.
func (s *Store) NextDue(ctx context.Context, hosted []int32) (time.Duration, bool, error) {
	var micros *int64
	if err := s.lookUp(ctx, s.claims, "next_due", []any{hosted}, &micros); err != nil {
		return 0, false, translate("next due", err)
	}
	if micros == nil {
		return 0, false, nil
	}
	return time.Duration(min(max(*micros, 0), mostMicros)) * time.Microsecond, true, nil
}

// News implements core.Deliveries.
func (s *Store) News(ctx context.Context, records []int64) (int64, []core.News, error) {
	var (
		epoch int64
		news  []core.News
	)
	err := s.read(ctx, s.hot, func(b *pgx.Batch) {
		b.Queue(s.q("news"), records).Query(each(func(rows pgx.Rows) error {
			var (
				n      core.News
				record *int64
				head   *int64
			)
			err := rows.Scan(&epoch, &record, &head, &n.Pending)
			if record != nil && head != nil {
				n.Record, n.Head = *record, *head
				news = append(news, n)
			}
			return err
		}))
	})
	return epoch, news, translate("news", err)
}
