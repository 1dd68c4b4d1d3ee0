package store

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/keylinehq/keyline/internal/core"
)

// BareOptions are the settings of a BareDrain; zero fields take the defaults.
type BareOptions struct {
	// Batch is the most records per claim; default 500.
	Batch int
	// Resident is the most records that are claimed and not yet settled; default 3000.
	Resident int
	// Lease is the worker's; default 15 s.
	Lease time.Duration
}

// BareReport is what a BareDrain did.
type BareReport struct {
	Records, Events int64
	Elapsed         time.Duration
	// PerSecond is Events by Elapsed.
	PerSecond float64
	// Calls are the round trips by kind.
	Calls Calls
}

// BareDrain settles all that is due with the runtime's own SQL and group
// commit, but without actors and handlers: every event counts as completed by every consumer at
// once. It is the yardstick for what the runtime itself costs, and nothing to run on data that matters.
//
// It is for records on which no consumer has a row of its own.
func (s *Store) BareDrain(ctx context.Context, o BareOptions) (BareReport, error) {
	if o.Batch == 0 {
		o.Batch = 500
	}
	if o.Resident == 0 {
		o.Resident = 3000
	}
	if o.Lease == 0 {
		o.Lease = 15 * time.Second
	}
	worker, err := s.Join(ctx, core.Worker{Name: "bare drain", Host: "localhost", Lease: o.Lease})
	if err != nil {
		return BareReport{}, err
	}
	s.SetWorker(worker)
	d := bareDrain{store: s, worker: worker, o: o, room: make(chan struct{}, o.Resident)}
	before, began := s.Calls(), s.clock.Mono()
	err = d.run(ctx)
	r := BareReport{Records: d.records.Load(), Events: d.events.Load(), Elapsed: s.clock.Mono() - began, Calls: s.Calls().since(before)}
	r.PerSecond = float64(r.Events) / r.Elapsed.Seconds()
	if leaveErr := s.Leave(context.WithoutCancel(ctx), worker); err == nil {
		err = leaveErr
	}
	return r, err
}

type bareDrain struct {
	store           *Store
	worker          int64
	o               BareOptions
	room            chan struct{} // one slot per resident record
	flying          sync.WaitGroup
	records, events atomic.Int64
	lost            atomic.Int64
}

// bareAhead is how many claimed batches may wait to be read.
const bareAhead = 1

func (d *bareDrain) run(ctx context.Context) error {
	registry, err := d.store.Registry(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	batches := make(chan []core.Claim, bareAhead)
	go func() {
		defer close(batches)
		if err := d.claim(ctx, batches); err != nil {
			cancel(err)
		}
	}()
	for claims := range batches {
		if err := d.load(ctx, registry, claims); err != nil {
			cancel(err)
		}
	}
	d.flying.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if n := d.lost.Load(); n > 0 {
		return fmt.Errorf("%d records did not settle", n)
	}
	return nil
}

// claim claims batch after batch until nothing is due.
func (d *bareDrain) claim(ctx context.Context, batches chan<- []core.Claim) error {
	for unbounded := true; ; unbounded = false {
		taken := 0
		for taken < d.o.Batch && ctx.Err() == nil {
			select {
			case d.room <- struct{}{}:
				taken++
				continue
			default:
			}
			if taken >= d.o.Batch/4 {
				break
			}
			select {
			case d.room <- struct{}{}:
				taken++
			case <-ctx.Done():
			}
		}
		claims, err := d.store.Claim(ctx, core.ClaimRequest{Worker: d.worker, Limit: taken, Unbounded: unbounded})
		if err != nil || len(claims) == 0 {
			return err
		}
		d.leave(taken - len(claims))
		batches <- claims
	}
}

func (d *bareDrain) leave(n int) {
	for range n {
		<-d.room
	}
}

// load reads a batch and hands every record of it to the committer, to be settled.
func (d *bareDrain) load(ctx context.Context, registry *core.Registry, claims []core.Claim) error {
	requests := make([]core.LoadRequest, len(claims))
	for i, c := range claims {
		requests[i] = core.LoadRequest{Claim: c, Limit: 64}
	}
	loaded, err := d.store.Load(ctx, requests)
	if err != nil {
		return err
	}
	for i := range loaded {
		d.settle(registry, &loaded[i])
	}
	return nil
}

func (d *bareDrain) settle(registry *core.Registry, l *core.Loaded) {
	f := &core.Flush{Record: l.Record, Token: l.Token, Head: l.Head, Cursor: l.Head, Then: core.Settle}
	n := l.Head - l.Base
	var last time.Time
	if k := len(l.Events); k > 0 {
		last = l.Events[k-1].CreatedAt
	}
	for _, c := range registry.Consumers {
		f.Counts = append(f.Counts, core.Counts{Consumer: c.ID, Completed: n, LastEventAt: last, LastSuccessAt: last})
	}
	d.flying.Add(1)
	d.store.Flush(f, registry.Epoch, func(r core.FlushResult) {
		if r.Status == core.FlushGone {
			d.records.Add(1)
			d.events.Add(n)
		} else {
			d.lost.Add(1)
		}
		d.leave(1)
		d.flying.Done()
	})
}

// BareSeed appends records with as many events each, as fast as SQL can.
func (s *Store) BareSeed(ctx context.Context, prefix string, records, events int) error {
	const chunk = 20_000
	for from := 0; from < records; from += chunk {
		if _, err := s.hot.Exec(ctx, s.q("seed"), from, min(chunk, records-from), events, prefix); err != nil {
			return translate("seed", err)
		}
	}
	return nil
}
