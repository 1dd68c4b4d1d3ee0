package keyline

import (
	"context"

	"github.com/keylinehq/keyline/store"
)

// What a prune takes and says.
type (
	// PruneOptions are the settings of a prune.
	PruneOptions = store.PruneOptions
	// PruneReport is what a prune deleted, or would, and what it had to keep.
	PruneReport = store.PruneReport
	// PruneHold is something that keeps events from being pruned.
	PruneHold = store.PruneHold
	// HeldRecord is a record whose events from a seq on are kept.
	HeldRecord = store.HeldRecord
)

// Prune implements Operator.
func (o *operator) Prune(ctx context.Context, reason string, opts PruneOptions) (PruneReport, error) {
	const op = "prune"
	if err := o.mayChangeAll(op, reason, false); err != nil {
		return PruneReport{}, err
	}
	switch {
	case opts.OlderThan < 0:
		return PruneReport{}, withOp(op, wrong("OlderThan", "is negative"))
	case opts.KeepFailures < 0:
		return PruneReport{}, withOp(op, wrong("KeepFailures", "is negative"))
	}
	report, err := o.store.Prune(ctx, opts, o.cfg.Actor, reason)
	return report, operated(op, err)
}
