package keyline

import (
	"context"
	"errors"

	"github.com/google/uuid"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/store"
)

// RetryConsumer implements Operator.
func (o *operator) RetryConsumer(ctx context.Context, event uuid.UUID, consumer, reason string) (Act, error) {
	const op = "retry consumer"
	if err := o.may(op, reason, false); err != nil {
		return Act{}, err
	}
	place, err := o.event(ctx, op, event)
	if err != nil {
		return Act{}, err
	}
	st, err := o.store.Standing(ctx, place.Record, place.Seq, consumer)
	act := actOn(place.Key, place.Seq, consumer, 0)
	switch {
	case err != nil:
		return act, operated(op, err)
	case st.Status == core.Disabled || st.Status == core.Retired:
		return act, nothing(op, "consumer %s is %s", consumer, st.Status)
	case st.DeadStatus == deadRetrying:
		return act, nothing(op, "it is being delivered again: dead letter %d", st.DeadLetter)
	case st.DeadStatus == deadOpen:
		act.DeadLetter = st.DeadLetter
		return o.give(ctx, op, core.Command{Record: place.Record, Kind: core.CommandRetryDead, Consumer: st.Consumer, DeadLetter: st.DeadLetter}, act, reason)
	case st.Seq >= place.Seq:
		// A position only grows: what is done now stays done.
		return act, nothing(op, "consumer %s is done with event %d of %s", consumer, place.Seq, place.Key.Record)
	}
	return o.give(ctx, op, core.Command{Record: place.Record, Kind: core.CommandRetry, Consumer: st.Consumer, Seq: place.Seq}, act, reason)
}

// event finds an event of a tenant that this Operator sees.
func (o *operator) event(ctx context.Context, op string, id uuid.UUID) (store.EventPlace, error) {
	place, err := o.store.FindEvent(ctx, id)
	switch {
	case err != nil:
		return place, operated(op, err)
	case !o.sees(place.Key.Tenant):
		return place, notFound(op, "event %s", id)
	}
	return place, nil
}

// The statuses of dead letters that acts ask for.
const (
	deadOpen     = "open"
	deadRetrying = "retrying"
)

// RetryEvent implements Operator.
func (o *operator) RetryEvent(ctx context.Context, event uuid.UUID, reason string) ([]Act, error) {
	const op = "retry event"
	if err := o.may(op, reason, false); err != nil {
		return nil, err
	}
	place, err := o.event(ctx, op, event)
	if err != nil {
		return nil, err
	}
	waits, err := o.store.EventWaits(ctx, place.Record, place.Seq)
	if err != nil {
		return nil, operated(op, err)
	}
	var acts []Act
	for _, w := range waits {
		c := core.Command{Record: place.Record, Kind: core.CommandRetry, Consumer: w.Consumer, Seq: place.Seq}
		if w.DeadLetter != 0 {
			c = core.Command{Record: place.Record, Kind: core.CommandRetryDead, Consumer: w.Consumer, DeadLetter: w.DeadLetter}
		}
		act, err := o.give(ctx, op, c, actOn(place.Key, place.Seq, w.Name, w.DeadLetter), reason)
		if errors.Is(err, &Error{Code: CodeNothingToDo}) {
			continue // somebody else was faster
		}
		if err != nil {
			return acts, err
		}
		acts = append(acts, act)
	}
	if len(acts) == 0 {
		return nil, nothing(op, "no delivery of event %d of %s is in backoff, parked or a dead letter", place.Seq, place.Key.Record)
	}
	return acts, nil
}

// RetryDeadLetter implements Operator.
func (o *operator) RetryDeadLetter(ctx context.Context, id int64, reason string) (Act, error) {
	const op = "retry dead letter"
	if err := o.may(op, reason, false); err != nil {
		return Act{}, err
	}
	d, err := o.deadLetter(ctx, op, id)
	if err != nil {
		return Act{}, err
	}
	if d.Status != deadOpen {
		return ofDead(d), nothing(op, "dead letter %d is %s", id, d.Status)
	}
	return o.give(ctx, op, retryDead(d), ofDead(d), reason)
}

// ResolveDeadLetter implements Operator.
func (o *operator) ResolveDeadLetter(ctx context.Context, id int64, reason string) (Act, error) {
	const op = "resolve dead letter"
	if err := o.may(op, reason, true); err != nil {
		return Act{}, err
	}
	d, err := o.deadLetter(ctx, op, id)
	if err != nil {
		return Act{}, err
	}
	if d.Status != deadOpen && d.Status != deadRetrying {
		return ofDead(d), nothing(op, "dead letter %d is %s", id, d.Status)
	}
	return o.give(ctx, op, resolveDead(d), ofDead(d), reason)
}

func retryDead(d store.DeadLetterRow) core.Command {
	return core.Command{Record: d.Record, Kind: core.CommandRetryDead, Consumer: d.ConsumerID, DeadLetter: d.ID}
}

func resolveDead(d store.DeadLetterRow) core.Command {
	return core.Command{Record: d.Record, Kind: core.CommandResolveDead, Consumer: d.ConsumerID, DeadLetter: d.ID}
}

func ofDead(d store.DeadLetterRow) Act {
	return actOn(Key{Tenant: d.Tenant, Record: d.Key}, d.Seq, d.Consumer, d.ID)
}

func (o *operator) deadLetter(ctx context.Context, op string, id int64) (DeadLetter, error) {
	if id <= 0 {
		return DeadLetter{}, &Error{Code: CodeNotFound, Message: "dead letters are numbered from 1", op: op, class: ErrNotFound}
	}
	list, err := o.store.DeadLetters(ctx, store.DeadQuery{ID: id, Tenant: o.cfg.Tenant}, 0, 1)
	if err != nil {
		return DeadLetter{}, operated(op, err)
	}
	if len(list) == 0 {
		return DeadLetter{}, notFound(op, "dead letter %d", id)
	}
	return list[0], nil
}

// SkipHead implements Operator.
func (o *operator) SkipHead(ctx context.Context, key Key, consumer string, seq int64, reason string) (Act, error) {
	const op = "skip"
	if err := o.may(op, reason, true); err != nil {
		return Act{}, err
	}
	if !o.sees(key.Tenant) {
		return Act{}, noRecord(op, key)
	}
	record, err := o.store.FindRecord(ctx, key)
	if err != nil {
		return Act{}, operated(op, err)
	}
	st, err := o.store.Standing(ctx, record, 0, consumer)
	// The event is named in the command: a head that comes to fail meanwhile is another one.
	act := actOn(key, st.Seq+1, consumer, 0)
	switch {
	case err != nil:
		return act, operated(op, err)
	case st.State != core.Backoff && st.State != core.Parked:
		return act, nothing(op, "consumer %s is neither in backoff nor parked on %s", consumer, key.Record)
	case seq != 0 && seq != act.Seq:
		return act, nothing(op, "consumer %s is at event %d of %s, not at %d", consumer, act.Seq, key.Record, seq)
	}
	return o.give(ctx, op, core.Command{Record: record, Kind: core.CommandSkip, Consumer: st.Consumer, Seq: act.Seq}, act, reason)
}

// PauseConsumer implements Operator.
func (o *operator) PauseConsumer(ctx context.Context, name, reason string) error {
	return o.setStatus(ctx, "pause consumer", name, core.Paused, reason, false)
}

// ResumeConsumer implements Operator.
func (o *operator) ResumeConsumer(ctx context.Context, name, reason string) error {
	return o.setStatus(ctx, "resume consumer", name, core.Active, reason, false)
}

// DisableConsumer implements Operator.
func (o *operator) DisableConsumer(ctx context.Context, name, reason string) error {
	return o.setStatus(ctx, "disable consumer", name, core.Disabled, reason, true)
}

// RetireConsumer implements Operator.
func (o *operator) RetireConsumer(ctx context.Context, name, reason string) error {
	return o.setStatus(ctx, "retire consumer", name, core.Retired, reason, true)
}

// setStatus changes a consumer's status under the registry barrier. It is
// applied when it returns: what was in flight is still written, nothing else begins.
func (o *operator) setStatus(ctx context.Context, op, name string, to core.Status, reason string, reasonRequired bool) error {
	if err := o.mayChangeAll(op, reason, reasonRequired); err != nil {
		return err
	}
	return operated(op, o.store.SetStatus(ctx, name, to, o.cfg.Actor, reason))
}

// RecoverStaleClaims implements Operator.
func (o *operator) RecoverStaleClaims(ctx context.Context, reason string) (Recovered, error) {
	const op = "recover stale claims"
	if err := o.mayChangeAll(op, reason, false); err != nil {
		return Recovered{}, err
	}
	r, err := o.store.Recover(ctx, o.cfg.Actor, reason)
	if err != nil {
		return r, operated(op, err)
	}
	if len(r.Workers) == 0 && r.Claims == 0 {
		return r, nothing(op, "no worker has been silent for longer than its lease, and claims are held by live ones alone; of a worker that has just gone, ask again in a lease")
	}
	return r, nil
}
