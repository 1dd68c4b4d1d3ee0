package store

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/core"
)

// maxBatch is the most records in one group commit: beyond it the time that
// the batch holds its rows grows and the cost per record does not fall.
const maxBatch = 1000

// committer writes outcomes as group commits: while one round trip is in
// flight, what comes in gathers for the next. Nobody waits on SQL but its goroutine.
// One at a time: see docs/decisions/0012-one-group-commit-at-a-time.md.
type committer struct {
	lane *lane
	done sync.WaitGroup
	once sync.Once
	end  context.CancelFunc
}

// lane is one queue with its goroutine.
type lane struct {
	store  *Store
	number int16
	// batches numbers the lane's batches, so that a repeated one's counts are added once.
	batches int64

	mu      sync.Mutex
	queue   []pending
	closing bool
	// batch and rest are take's, used again; batch is with the lane's goroutine.
	batch, rest []pending
	ring        chan struct{} // one slot: something is in the queue
}

// pending is a flush that waits, or is being written. Whoever asked for it does
// not change it before it has its answer.
type pending struct {
	record int64 // the flush's, at hand for the sort
	flush  *core.Flush
	epoch  int64
	done   func(core.FlushResult)
	tries  int
}

func (p pending) answer(status core.FlushStatus) {
	p.done(core.FlushResult{Record: p.record, Token: p.flush.Token, Status: status})
}

// startCommitter starts the goroutine, which runs until stop, not until ctx ends.
func startCommitter(ctx context.Context, s *Store) *committer {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c := &committer{lane: &lane{store: s, ring: make(chan struct{}, 1)}, end: cancel}
	c.done.Go(func() { c.lane.run(ctx) })
	return c
}

// Flush implements core.Deliveries.
func (s *Store) Flush(f *core.Flush, epoch int64, done func(core.FlushResult)) {
	s.commit.lane.add(pending{record: f.Record, flush: f, epoch: epoch, done: done})
}

func (l *lane) add(p ...pending) {
	l.mu.Lock()
	closing := l.closing
	if !closing {
		l.queue = append(l.queue, p...)
	}
	l.mu.Unlock()
	if closing {
		for _, p := range p {
			p.answer(core.FlushFenced)
		}
		return
	}
	select {
	case l.ring <- struct{}{}:
	default:
	}
}

// stopGrace is how long stop waits for what has been handed over.
const stopGrace = 5 * time.Second

func (c *committer) stop() {
	c.once.Do(func() {
		l := c.lane
		l.mu.Lock()
		l.closing = true
		l.mu.Unlock()
		select {
		case l.ring <- struct{}{}:
		default:
		}
		t := l.store.clock.AfterFunc(stopGrace, c.end)
		c.done.Wait()
		t.Stop()
		c.end()
	})
}

func (l *lane) run(ctx context.Context) {
	for {
		batch, closing := l.take()
		if len(batch) > 0 {
			l.write(ctx, batch)
			clear(batch) // what has its answer is not to be held here
			continue
		}
		if closing {
			return
		}
		select {
		case <-l.ring:
		case <-ctx.Done():
			l.mu.Lock()
			l.closing = true
			l.mu.Unlock()
		}
	}
}

// take removes the next batch: of one epoch, at most one flush per record,
// sorted by record id, which is the order in which mailboxes are locked.
func (l *lane) take() (batch []pending, closing bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) == 0 {
		return nil, l.closing
	}
	epoch := l.queue[0].epoch
	slices.SortStableFunc(l.queue, func(a, b pending) int { return cmp.Compare(a.record, b.record) })
	batch, rest := l.batch[:0], l.rest[:0]
	for i, p := range l.queue {
		same := i > 0 && l.queue[i-1].record == p.record // never before an earlier one, nor beside it
		if p.epoch == epoch && !same && len(batch) < maxBatch {
			batch = append(batch, p)
		} else {
			rest = append(rest, p)
		}
	}
	clear(l.queue)
	l.batch, l.queue, l.rest = batch, rest, l.queue[:0]
	return batch, l.closing
}

// write writes a batch until every record in it has its answer.
func (l *lane) write(ctx context.Context, batch []pending) {
	l.batches++
	number := l.batches
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		results, err := l.store.flush(ctx, batch, l.number, number)
		switch {
		case err == nil:
			// What is left goes under the same number: if this try was the
			// repetition of one that was carried out, it has been counted.
			if batch = l.answer(batch, results); len(batch) == 0 {
				return
			}
		case ctx.Err() != nil:
			for _, p := range batch {
				p.answer(core.FlushFenced) // closing: whoever comes next claims and repeats
			}
			return
		case unavailable(err) || transient(err) || beside(err):
			// Whether it was carried out or not: under the token a repetition
			// changes nothing.
			l.store.log.Warn("flush is repeated", "error", err, "records", len(batch))
			if clock.Sleep(ctx, l.store.clock, pause) != nil {
				continue
			}
		case len(batch) > 1:
			half := len(batch) / 2
			l.write(ctx, batch[:half])
			l.write(ctx, batch[half:])
			return
		case sqlState(err) == stateCancelled: // by a time limit of the role, or by somebody: it says nothing of the outcome
			l.store.log.Warn("flush was cancelled, and is repeated", "error", err, "record", batch[0].record)
			l.later(batch[0], cancelledPause)
			return
		default:
			l.culprit(ctx, batch[0], err)
			return
		}
	}
}

// cancelledPause is how long an outcome waits whose flush was cancelled, while others are written.
const cancelledPause = 200 * time.Millisecond

// answer passes the results on; records that somebody had locked go into the
// next batch. It returns those that were not written because of others in the batch.
func (l *lane) answer(batch []pending, results []flushed) (rest []pending) {
	for i, p := range batch {
		r := results[i]
		switch {
		case r.skipped:
			l.again(p)
			continue
		case r.again:
			rest = append(rest, p)
			continue
		}
		p.done(core.FlushResult{Record: p.record, Token: p.flush.Token, Status: r.status, Head: r.head,
			Pending: r.pending, Busy: r.busy,
			Rewritten: p.tries < 0 && r.status <= core.FlushGone})
	}
	return rest
}

// again puts a flush back whose mailbox was locked. A lock is short (a claim
// that looks, an append), so the first tries follow at once, the others pause.
func (l *lane) again(p pending) {
	p.tries++
	if p.tries < 3 {
		l.add(p)
		return
	}
	l.later(p, min(time.Duration(p.tries)*time.Millisecond, 50*time.Millisecond))
}

// later puts a flush back after a pause.
func (l *lane) later(p pending, pause time.Duration) {
	l.store.clock.AfterFunc(pause, func() { l.add(p) })
}

// culprit books a record's outcomes without their texts, which is what the
// database can have refused; so the outcome still counts and the batch goes on.
func (l *lane) culprit(ctx context.Context, p pending, cause error) {
	l.store.log.Error("an outcome could not be written as it was", "record", p.record, "error", cause)
	bare := p.flush.WithoutTexts()
	l.batches++
	results, err := l.store.flush(ctx, []pending{{record: p.record, flush: bare, epoch: p.epoch}}, l.number, l.batches)
	if err == nil {
		p.tries = -1
		l.answer([]pending{p}, results)
		return
	}
	switch {
	case unavailable(err) || transient(err) || beside(err):
		l.add(p)
		return
	case sqlState(err) == stateCancelled:
		l.later(p, cancelledPause)
		return
	}
	// Not the texts: the claim ends here, its mailbox is found by the orphan search.
	l.store.log.Error("an outcome could not be written at all", "record", p.record, "error", errors.Join(cause, err))
	p.answer(core.FlushFenced)
}
