package keyline

import (
	"cmp"
	"context"
	"fmt"
)

// DrainedWorker is a worker that has left because an operator asked for it.
type DrainedWorker struct {
	Worker int64  `json:"worker"`
	Name   string `json:"name"`
	// Joined is true where it had been asked before.
	Joined bool `json:"joined"`
	// StillRunning is true where handlers that ignore their context had outlived its
	// grace: what they hold stays theirs for a lease more.
	StillRunning bool `json:"still_running"`
}

// DrainWorker implements Operator.
func (o *operator) DrainWorker(ctx context.Context, id int64, reason string) (DrainedWorker, error) {
	const op = "drain worker"
	out := DrainedWorker{Worker: id}
	if err := o.mayChangeAll(op, reason, false); err != nil {
		return out, err
	}
	asked, joined, err := o.store.Drain(ctx, id, o.cfg.Actor, reason)
	out.Joined = joined
	if err != nil {
		return out, operated(op, err)
	}
	end, err := o.store.AwaitDrained(ctx, cmp.Or(asked, id), asked != 0)
	out.Name, out.StillRunning = end.Name, end.StillRunning
	switch {
	case err != nil && asked != 0 && ctx.Err() != nil:
		return out, &Error{Code: CodeNotAppliedYet, op: op, class: ErrUnavailable, cause: ctx.Err(),
			Message: fmt.Sprintf("worker %d is asked, but has not left yet; it stays asked", id)}
	case err != nil:
		return out, operated(op, err)
	case asked == 0:
		return out, nothing(op, "worker %s#%d is %s", end.Name, id, end.Status)
	case end.Last == "lost":
		return out, &Error{Code: CodeWorkerNotLive, op: op, class: ErrConflict,
			Message: fmt.Sprintf("worker %s#%d was lost before it had drained; the others recover what it held", end.Name, id)}
	}
	return out, nil
}

// Workers implements Operator.
func (o *operator) Workers(ctx context.Context) ([]WorkerView, error) {
	const op = "list workers"
	if err := o.mayAll(op); err != nil {
		return nil, err
	}
	list, err := o.store.Workers(ctx)
	return list, operated(op, err)
}
