package sim

import (
	"context"
	"time"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// Deliveries is a Twin as one worker's core.Deliveries, so that what is tested
// on the store can be tested on its double. Like the Twin it is not safe for concurrent use.
type Deliveries struct {
	Twin   *Twin
	Worker int64
	Local  map[string]Local
}

var _ core.Deliveries = (*Deliveries)(nil)

// Claim implements core.Deliveries.
func (d *Deliveries) Claim(_ context.Context, q core.ClaimRequest) ([]core.Claim, error) {
	claims, ok := d.Twin.Claim(q)
	if !ok {
		return nil, keylinetype.ErrFenced
	}
	return claims, nil
}

// ClaimRecord implements core.Deliveries.
func (d *Deliveries) ClaimRecord(ctx context.Context, q core.ClaimRequest, limit int) (claims []core.Claim, loaded []core.Loaded, err error) {
	if claims, err = d.Claim(ctx, q); err == nil && len(claims) > 0 {
		loaded, err = d.Load(ctx, []core.LoadRequest{{Claim: claims[0], Limit: limit}})
	}
	return claims, loaded, err
}

// NextDue implements core.Deliveries.
func (d *Deliveries) NextDue(_ context.Context, hosted []int32) (time.Duration, bool, error) {
	at := Never
	for _, r := range d.Twin.records {
		m := r.mailbox
		if m == nil || m.ClaimedBy != 0 {
			continue
		}
		if m.DueAt.Before(at) {
			at = m.DueAt
		}
		if overlap(m.Wants, hosted) && m.WantsDueAt.Before(at) {
			at = m.WantsDueAt
		}
	}
	if at.Equal(Never) {
		return 0, false, nil
	}
	return max(at.Sub(d.Twin.Now), 0), true, nil
}

// Load implements core.Deliveries.
func (d *Deliveries) Load(_ context.Context, requests []core.LoadRequest) ([]core.Loaded, error) {
	var loaded []core.Loaded
	limit := 0
	for _, q := range requests {
		limit = max(limit, q.Limit)
	}
	for _, q := range requests {
		q.Limit = limit
		if l, ok := d.Twin.Load(q); ok {
			loaded = append(loaded, l)
		}
	}
	return loaded, nil
}

// LoadEvents implements core.Deliveries.
func (d *Deliveries) LoadEvents(_ context.Context, ranges []core.EventRange) ([]core.Event, error) {
	return d.Twin.LoadEvents(ranges), nil
}

// Flush implements core.Deliveries; done is called before it returns.
func (d *Deliveries) Flush(f *core.Flush, epoch int64, done func(core.FlushResult)) {
	done(d.Twin.Flush(d.Worker, epoch, *f))
}

// News implements core.Deliveries.
func (d *Deliveries) News(_ context.Context, records []int64) (int64, []core.News, error) {
	news := make([]core.News, 0, len(records))
	for _, id := range records {
		if d.Twin.record(id) == nil {
			continue
		}
		_, n := d.Twin.News(id)
		news = append(news, n)
	}
	return d.Twin.epoch, news, nil
}

// Registry implements core.Deliveries.
func (d *Deliveries) Registry(context.Context) (*core.Registry, error) {
	return d.Twin.Registry(d.Local), nil
}
