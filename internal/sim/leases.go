package sim

import (
	"context"
	"time"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// defaultLease is that of workers that join without one.
const defaultLease = 15 * time.Second

// Leases is a Twin as core.Leases. Like the Twin it is not safe for concurrent use.
type Leases struct{ Twin *Twin }

var _ core.Leases = Leases{}

// Join implements core.Leases.
func (l Leases) Join(_ context.Context, w core.Worker) (int64, error) {
	id := l.Twin.Join()
	l.Twin.workers[id-1].lease = w.Lease
	return id, nil
}

// Renew implements core.Leases; nothing reads the state.
func (l Leases) Renew(_ context.Context, worker int64, _ []byte) error {
	if !l.Twin.live(worker) {
		return keylinetype.ErrFenced
	}
	l.Twin.workers[worker-1].beat++
	return nil
}

// Beats implements core.Leases.
func (l Leases) Beats(context.Context) ([]core.Beat, error) {
	var beats []core.Beat
	for i, w := range l.Twin.workers {
		gone := w.status != "live"
		if !gone || l.Twin.HasClaims(int64(i+1)) {
			beats = append(beats, core.Beat{Worker: int64(i + 1), Beat: w.beat, Lease: w.lease, Gone: gone})
		}
	}
	return beats, nil
}

// MarkLost implements core.Leases.
func (l Leases) MarkLost(_ context.Context, seen core.Beat) (bool, error) {
	if !l.Twin.live(seen.Worker) || l.Twin.workers[seen.Worker-1].beat != seen.Beat {
		return false, nil
	}
	l.Twin.MarkLost(seen.Worker)
	return true, nil
}

// Recover implements core.Leases.
func (l Leases) Recover(context.Context) (int, error) { return l.Twin.Recover(1 << 30), nil }

// Leave implements core.Leases.
func (l Leases) Leave(_ context.Context, worker int64) error {
	l.Twin.Leave(worker)
	return nil
}

// LeaveLater implements core.Leases.
func (l Leases) LeaveLater(_ context.Context, worker int64) error {
	l.Twin.LeaveLater(worker)
	return nil
}

// HandBackOrphans implements core.Leases.
func (l Leases) HandBackOrphans(_ context.Context, worker int64, held []core.Held) (int, error) {
	return l.Twin.HandBackOrphans(worker, held), nil
}
