package supervisor

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/keylinehq/keyline/actors"
	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// loadBatch is the most records that are read in one round trip.
const loadBatch = 500

// loader reads records: newly claimed ones, and resident ones again. What comes
// in while a round trip is in flight goes with the next.
type loader struct {
	s *Supervisor

	mu      sync.Mutex
	claims  []claimItem
	reloads []reloadItem
	loading []claimItem // in the round trip
	ring    chan struct{}

	size batchSize // of the goroutine
}

// batchSize is how much one round trip reads. An error that is not about the
// connection is somebody's: the size is halved until the culprit is alone, and
// grows again with every success.
type batchSize struct{ n int }

func (b *batchSize) get() int {
	if b.n == 0 {
		b.n = loadBatch
	}
	return b.n
}

func (b *batchSize) succeeded() { b.n = min(b.n*2, loadBatch) }

// failed reports whether what was read alone is to be given up.
func (b *batchSize) failed(read int) (alone bool) {
	if read <= 1 {
		return true
	}
	b.n = read / 2
	return false
}

// temporary: to be tried again as it is.
func temporary(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, keylinetype.ErrUnavailable) || errors.Is(err, keylinetype.ErrFenced)
}

type claimItem struct {
	claim core.Claim
	gen   uint64
}

type reloadItem struct {
	seat     *actors.Seat
	req      actors.Request
	registry bool
}

func newLoader(s *Supervisor) *loader { return &loader{s: s, ring: make(chan struct{}, 1)} }

func (l *loader) claimed(gen uint64, claims ...core.Claim) {
	l.mu.Lock()
	for _, c := range claims {
		l.claims = append(l.claims, claimItem{c, gen})
	}
	l.mu.Unlock()
	signal(l.ring)
}

func (l *loader) reload(r reloadItem) {
	l.mu.Lock()
	l.reloads = append(l.reloads, r)
	l.mu.Unlock()
	signal(l.ring)
}

// drop forgets the claims that no seat has yet.
func (l *loader) drop() {
	l.mu.Lock()
	n := len(l.claims)
	l.claims = nil
	l.mu.Unlock()
	l.s.room.leave(n)
}

// held appends the claims that no seat has yet.
func (l *loader) held(out []core.Held) []core.Held {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.claims {
		out = append(out, core.Held{Record: c.claim.Record, Token: c.claim.Token})
	}
	for _, c := range l.loading {
		out = append(out, core.Held{Record: c.claim.Record, Token: c.claim.Token})
	}
	return out
}

// run loads until ctx ends. After an error what it was at is kept, for the next run.
func (l *loader) run(ctx context.Context) error {
	for {
		l.mu.Lock()
		claims, reloads := l.take()
		l.mu.Unlock()
		if len(claims)+len(reloads) == 0 {
			select {
			case <-l.ring:
				continue
			case <-ctx.Done():
				return nil
			}
		}
		if err := l.load(ctx, claims, reloads); err != nil {
			l.putBack(claims, reloads)
			return err
		}
	}
}

// take removes the next batch; the lock is held.
func (l *loader) take() ([]claimItem, []reloadItem) {
	size := l.size.get()
	r := min(len(l.reloads), size)
	reloads := l.reloads[:r:r]
	l.reloads = l.reloads[r:]
	c := min(len(l.claims), size-r)
	claims := l.claims[:c:c]
	l.claims = l.claims[c:]
	l.loading = claims
	return claims, reloads
}

func (l *loader) putBack(claims []claimItem, reloads []reloadItem) {
	l.mu.Lock()
	l.claims = append(claims, l.claims...)
	l.reloads = append(reloads, l.reloads...)
	l.loading = nil
	l.mu.Unlock()
	if l.s.draining.Load() {
		l.drop()
	}
}

// load reads a batch and hands out what it found.
func (l *loader) load(ctx context.Context, claims []claimItem, reloads []reloadItem) error {
	registry, err := l.registry(ctx, reloads)
	if err != nil {
		return err
	}
	limit := l.s.cfg.LoadLimit
	requests := make([]core.LoadRequest, 0, len(claims)+len(reloads))
	for _, r := range reloads {
		requests = append(requests, core.LoadRequest{Claim: core.Claim{Record: r.req.Record, Token: r.req.Token}, Limit: limit})
	}
	for _, c := range claims {
		requests = append(requests, core.LoadRequest{Claim: c.claim, Limit: limit})
	}
	loaded, err := l.s.cfg.Deliveries.Load(ctx, requests)
	for err == nil && newest(loaded) > registry.Epoch {
		// A consumer was paused, or the like, and nobody has told this worker: what it
		// has just claimed is not to be delivered by what was so before.
		if registry, err = l.s.refreshRegistry(ctx); err != nil {
			return err
		}
		loaded, err = l.s.cfg.Deliveries.Load(ctx, requests)
	}
	if err == nil {
		l.size.succeeded()
		l.s.health.worked("loads")
		l.handOut(registry, loaded, claims, reloads)
		return nil
	}
	l.s.noticeFence(err)
	if !temporary(ctx, err) && l.size.failed(len(requests)) {
		// Nothing here can process it. Its claim has no holder any more and is
		// handed back by the orphan sweep, once a lease.
		l.s.cfg.Log.Error("record cannot be loaded", "record", requests[0].Record, "error", err)
		l.handOut(registry, nil, claims, reloads)
		return nil
	}
	return fmt.Errorf("load %d records: %w", len(requests), err)
}

// newest is the highest registry epoch that a record was read at.
func newest(loaded []core.Loaded) (epoch int64) {
	for i := range loaded {
		epoch = max(epoch, loaded[i].Epoch)
	}
	return epoch
}

// registry returns the registry to load with: read before the record, and
// again if somebody knows that the present one has been replaced.
func (l *loader) registry(ctx context.Context, reloads []reloadItem) (*core.Registry, error) {
	current := l.s.registry.Load()
	for _, r := range reloads {
		if r.registry && current.Epoch <= r.req.Epoch {
			return l.s.refreshRegistry(ctx)
		}
	}
	return current, nil
}

// handOut gives every record to its seat; those that are missing are lost.
func (l *loader) handOut(registry *core.Registry, loaded []core.Loaded, claims []claimItem, reloads []reloadItem) {
	found := byRecord(loaded)
	for _, r := range reloads {
		at := found[r.req.Record]
		// A seat that was fenced and then restarted must not begin again.
		if at != nil && (at.Token != r.req.Token || r.req.Gen != l.s.gen()) {
			at = nil
		}
		r.seat.Reloaded(r.req, registry, at)
		if l.s.registry.Load().Epoch > registry.Epoch {
			r.seat.RegistryMoved()
		}
	}
	l.s.seatAll(registry, found, claims)
	l.mu.Lock()
	l.loading = nil
	l.mu.Unlock()
}

func byRecord(loaded []core.Loaded) map[int64]*core.Loaded {
	found := make(map[int64]*core.Loaded, len(loaded))
	for i := range loaded {
		found[loaded[i].Record] = &loaded[i]
	}
	return found
}

// seatAll gives claims their seats; those that were not found are lost.
func (s *Supervisor) seatAll(registry *core.Registry, found map[int64]*core.Loaded, claims []claimItem) {
	var fresh []spawnItem
	missing := 0
	for _, c := range claims {
		at := found[c.claim.Record]
		if at == nil || at.Token != c.claim.Token {
			missing++
			s.suspectEnded(c.claim.Record, c.claim.Token)
			continue
		}
		at.Claim = c.claim
		if item, isNew := s.seat(registry, at, c.gen); isNew {
			fresh = append(fresh, item)
		}
	}
	if len(fresh) > 0 {
		s.system.Root.Send(s.rootPID, &spawnMsg{fresh})
	}
	s.room.leave(missing)
}

// eventLoader reads more events of resident records, likewise.
type eventLoader struct {
	s    *Supervisor
	mu   sync.Mutex
	list []eventsItem
	ring chan struct{}
	size batchSize
}

type eventsItem struct {
	seat   *actors.Seat
	req    actors.Request
	ranges []core.EventRange
}

func newEventLoader(s *Supervisor) *eventLoader {
	return &eventLoader{s: s, ring: make(chan struct{}, 1)}
}

func (l *eventLoader) add(i eventsItem) {
	l.mu.Lock()
	l.list = append(l.list, i)
	l.mu.Unlock()
	signal(l.ring)
}

func (l *eventLoader) run(ctx context.Context) error {
	for {
		l.mu.Lock()
		n := min(len(l.list), l.size.get())
		items := l.list[:n:n]
		l.list = l.list[n:]
		l.mu.Unlock()
		if n == 0 {
			select {
			case <-l.ring:
				continue
			case <-ctx.Done():
				return nil
			}
		}
		if err := l.load(ctx, items); err != nil {
			l.mu.Lock()
			l.list = append(items, l.list...)
			l.mu.Unlock()
			return err
		}
	}
}

func (l *eventLoader) load(ctx context.Context, items []eventsItem) error {
	var ranges []core.EventRange
	for _, i := range items {
		ranges = append(ranges, i.ranges...)
	}
	events, err := l.s.cfg.Deliveries.LoadEvents(ctx, ranges)
	if err != nil {
		l.s.noticeFence(err)
		if !temporary(ctx, err) && l.size.failed(len(items)) {
			// As above: given up here, handed back by the orphan sweep.
			l.s.cfg.Log.Error("events cannot be loaded", "record", items[0].req.Record, "error", err)
			items[0].seat.Reloaded(items[0].req, nil, nil)
			return nil
		}
		return fmt.Errorf("load events of %d records: %w", len(items), err)
	}
	l.size.succeeded()
	l.s.health.worked("events")
	byRecord := make(map[int64][]core.Event, len(items))
	for _, e := range events {
		byRecord[e.Record] = append(byRecord[e.Record], e)
	}
	for _, i := range items {
		i.seat.EventsLoaded(i.req, byRecord[i.req.Record])
	}
	return nil
}
