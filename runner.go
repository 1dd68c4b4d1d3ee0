package keyline

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"maps"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/actors/delivery"
	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/store"
)

// runner runs the handlers of this process's consumers: actors.Runner.
type runner struct {
	store  *store.Store
	clock  clock.Clock
	random func() float64
	hosted map[string]*hosted
	watch  *processTelemetry
}

// hosted is one consumer of this process, with middleware around its handler.
type hosted struct {
	Consumer
	handle func(ctx context.Context, tx pgx.Tx, batch []*Delivery) error
	watch  *consumerTelemetry
}

func newHosted(c Consumer, middleware []func(Handler) Handler, watch *consumerTelemetry) *hosted {
	h := &hosted{Consumer: c, watch: watch}
	switch {
	case len(middleware) == 0:
		h.handle = h.call
	default:
		h.handle = func(ctx context.Context, tx pgx.Tx, batch []*Delivery) error {
			next := Handler(func(ctx context.Context, d *Delivery) error {
				if d != batch[0] { // a middleware has put another in its place: decrypted, or brought up to date
					return h.call(ctx, tx, append([]*Delivery{d}, batch[1:]...))
				}
				return h.call(ctx, tx, batch)
			})
			for i := len(middleware) - 1; i >= 0; i-- {
				next = middleware[i](next)
			}
			return next(ctx, batch[0])
		}
	}
	return h
}

func (h *hosted) call(ctx context.Context, tx pgx.Tx, batch []*Delivery) error {
	switch {
	case h.HandleTx != nil:
		return h.HandleTx(ctx, tx, batch[0])
	case h.HandleBatch != nil:
		return h.HandleBatch(ctx, batch)
	}
	return h.Handle(ctx, batch[0])
}

// timeoutError is a handler's failure after its consumer's own Timeout.
type timeoutError struct {
	after time.Duration
	err   error
}

func (e *timeoutError) Error() string {
	return "timed out after " + e.after.String() + ": " + e.err.Error()
}
func (e *timeoutError) Unwrap() error   { return e.err }
func (*timeoutError) ErrorCode() string { return core.CodeTimeout }

// errNotHosted is the outcome of work for a consumer that this process does
// not have, which the registry rules out.
var errNotHosted = errors.New("consumer is not hosted by this process")

// Run implements actors.Runner. A panic of the handler passes through, to the
// actor that supervises it.
func (r *runner) Run(ctx context.Context, w *core.Work) (out core.Outcome) {
	h := r.hosted[w.Consumer.Name]
	if h == nil {
		return core.Outcome{Err: errNotHosted, Cancelled: true}
	}
	batch := deliveries(w)
	ctx, p := r.watch.start(ctx, h.watch, w, batch)
	out.Err = errPanicked // what end sees where the handler does not return
	defer func() { p.end(ctx, &out) }()
	out = r.run(ctx, h, w, batch)
	return out
}

var errPanicked = errors.New("handler panicked")

func (r *runner) run(ctx context.Context, h *hosted, w *core.Work, batch []*Delivery) core.Outcome {
	if h.HandleTx == nil {
		return core.Outcome{Err: h.timed(ctx, nil, batch)}
	}
	handle := func(ctx context.Context, tx pgx.Tx) error { return h.timed(ctx, tx, batch) }
	return r.store.RunTx(ctx, w, handle, func(err error) core.Booking {
		cancelled := err != nil && ctx.Err() != nil
		return delivery.Decide(r.clock.Now(), r.random, w.Consumer, w, &core.Outcome{Err: err, Cancelled: cancelled})
	})
}

// timed calls the handler under its consumer's Timeout, if it has one. What it returns can be read.
func (h *hosted) timed(ctx context.Context, tx pgx.Tx, batch []*Delivery) error {
	if h.Timeout <= 0 {
		return readable(h.handle(ctx, tx, batch))
	}
	limited, cancel := context.WithTimeout(ctx, h.Timeout)
	defer cancel()
	err := readable(h.handle(limited, tx, batch))
	if err != nil && errors.Is(limited.Err(), context.DeadlineExceeded) && ctx.Err() == nil {
		return &timeoutError{h.Timeout, err}
	}
	return err
}

// deliveries are what the handler gets. They are its own: it may keep and change them. The work's events
// are those of the record's machine, from which siblings and later attempts are served.
func deliveries(w *core.Work) []*Delivery {
	var list []Delivery
	var batch []*Delivery
	if len(w.Events) == 1 { // almost always: one allocation
		one := &struct {
			delivery [1]Delivery
			batch    [1]*Delivery
		}{}
		list, batch = one.delivery[:], one.batch[:]
	} else {
		list, batch = make([]Delivery, len(w.Events)), make([]*Delivery, len(w.Events))
	}
	for i := range w.Events {
		e := &w.Events[i]
		list[i] = Delivery{
			Event: ownEvent(e.Event), Consumer: w.Consumer.Name, Attempt: w.Attempt, Redelivered: w.Redelivered, Mode: Live, Token: w.Token,
			IdempotencyKey: idempotencyKey(e.ID, w.Consumer.ID),
		}
		switch {
		case w.Replay:
			list[i].Mode = Replay
		case e.Seq <= w.Checkpoint.LiveFrom:
			list[i].Mode = CatchUp
		}
		batch[i] = &list[i]
	}
	return batch
}

// ownEvent copies what an event refers to.
func ownEvent(e Event) Event {
	e.Payload, e.Headers = bytes.Clone(e.Payload), maps.Clone(e.Headers)
	return e
}

// idempotencyKey is the event's id, a colon, and the consumer's.
func idempotencyKey(event uuid.UUID, consumer int32) string {
	var text [36 + 1 + 11]byte
	h := hex.AppendEncode(text[:0], event[:4])
	for _, part := range [...][]byte{event[4:6], event[6:8], event[8:10], event[10:]} {
		h = hex.AppendEncode(append(h, '-'), part)
	}
	return string(strconv.AppendInt(append(h, ':'), int64(consumer), 10))
}
