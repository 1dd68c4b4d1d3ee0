package keyline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
	"github.com/keylinehq/keyline/store/clientsql"
)

// InProcess is a Publisher without a worker: it hands each event to its
// consumers at once, in the caller's process, and keeps its streams in memory.
// It is for tests, for isolated use without a database, and for consumers that
// have not moved to a worker yet. It keeps no event over a restart and retries nothing.
//
// An event type belongs either to an in-process publisher or to append. In one
// database nobody can publish a type along both ways: Claim makes append, from
// any language, refuse it, and with a database at hand this publisher refuses
// what it has not claimed there.
type InProcess struct {
	check     checker
	sql       *clientsql.Statements
	types     []string
	consumers []Consumer
	registry  *core.Registry
	clock     clock.Clock

	mu      sync.Mutex
	streams memory
	queue   []inProcessTask
	busy    bool // somebody works the queue off
}

// NewInProcess makes an in-process publisher of the event types named, which it
// hands to the consumers that take them, in the order given. cfg is what a
// Client takes. A consumer that is Excluded or ContractOnly gets nothing.
func NewInProcess(cfg ClientConfig, types []string, consumers ...Consumer) (*InProcess, error) {
	statements, err := clientsql.For(cfg.Schema)
	if err != nil {
		return nil, wrong("ClientConfig.Schema", "%v", err)
	}
	check, err := newChecker(cfg)
	if err != nil {
		return nil, err
	}
	if len(types) == 0 {
		return nil, wrong("types", "is empty")
	}
	for _, t := range types {
		if err := checkNames(prepared{eventType: t, version: 1}); err != nil {
			return nil, wrong("types", "%s", err.Message)
		}
	}
	if err := validateConsumers(consumers); err != nil {
		return nil, err
	}
	internal := map[string]bool{}
	for _, t := range cfg.EventTypes {
		internal[t.Type] = internal[t.Type] || t.Internal
	}
	known := make([]*core.Consumer, len(consumers))
	for i, c := range consumers {
		definition := c.toCore()
		definition.ID = int32(i + 1)
		known[i] = &definition
	}
	return &InProcess{
		check: check, sql: statements, types: slices.Clone(types), consumers: slices.Clone(consumers), clock: clock.Real(),
		registry: core.NewRegistry(1, Independent, known, internal), streams: newMemory(),
	}, nil
}

// Append keeps an event and hands it to the consumers before it returns; see AppendMany.
func (p *InProcess) Append(ctx context.Context, db PGX, event NewEvent) (Appended, error) {
	results, err := p.publish(ctx, db, []NewEvent{event}, -1)
	if len(results) == 0 {
		return Appended{}, err
	}
	return results[0], err
}

// AppendMany keeps events and hands them to the consumers, in order, before it
// returns. An event that is refused leaves nothing behind. Consumers' failures are
// joined into the error, beside the results: the events count all the same.
//
// db may be nil where there is no database; with one, the types must have been
// claimed there. HandleTx runs in a savepoint of db, which must then be a
// pgx.Tx. Note that handlers run before that transaction commits. A handler
// that publishes must do so with the context that it was given: such events come
// after those that wait already, and their failures show in the outer call.
func (p *InProcess) AppendMany(ctx context.Context, db PGX, events []NewEvent) ([]Appended, error) {
	return p.publish(ctx, db, events, 0)
}

// Events returns what was published on a record, from its first event on; nothing where there is no such
// record, or it is another tenant's than that of ClientConfig.
func (p *InProcess) Events(key Key) []Event {
	tenant, bad := p.check.tenantOf(key.Tenant)
	if bad != nil {
		return nil
	}
	key.Tenant = tenant
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.streams.events(key)
	for i, e := range list {
		list[i] = ownEvent(e)
	}
	return list
}

// publish is AppendMany; first is the index by which errors name the first
// event, or -1 for one that has none.
func (p *InProcess) publish(ctx context.Context, db PGX, events []NewEvent, first int) ([]Appended, error) {
	if len(events) == 0 {
		return nil, nil
	}
	batch := make([]prepared, len(events))
	for i, e := range events {
		var err error
		if batch[i], err = p.check.prepare(ctx, e, place(first, i)); err != nil {
			return nil, withOp(appendOperation, err)
		}
		if !slices.Contains(p.types, e.Type) {
			return nil, withOp(appendOperation, invalid(CodeInProcessType, "Type", "%s is not one of this publisher's types", e.Type))
		}
	}
	if err := p.checkClaimed(ctx, db, batch); err != nil {
		return nil, withOp(appendOperation, translate(appendOperation, err))
	}
	results, call, work, err := p.enqueue(ctx, db, batch)
	switch {
	case err != nil:
		return nil, withOp(appendOperation, err)
	case call == nil: // published by a handler: the call that it runs in reports
		return results, nil
	case work:
		p.work() //nolint:contextcheck // each task has the context that it came with
	}
	<-call.done
	return results, errors.Join(call.errs...)
}

// place is the index by which an error names the i-th event.
func place(first, i int) int {
	if first < 0 {
		return first
	}
	return first + i
}

// inProcessCall is one call from outside, with what handlers published in it.
type inProcessCall struct {
	owner *InProcess
	left  int // tasks; under the publisher's lock
	errs  []error
	done  chan struct{}
}

type inProcessCallKey struct{}

// inProcessTask is an event on its way to the consumers.
type inProcessTask struct {
	ctx   context.Context // the handler's argument, carried over the queue
	db    PGX
	event Event
	call  *inProcessCall
}

// enqueue keeps the events and puts the new ones at the queue's end. call is
// what to wait for, nil where ctx is a handler's; work is true where the caller
// is to work the queue off.
func (p *InProcess) enqueue(ctx context.Context, db PGX, batch []prepared) (results []Appended, wait *inProcessCall, work bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	results, events, err := p.streams.append(batch, p.clock.Now().UTC())
	if err != nil {
		return nil, nil, false, err
	}
	call, _ := ctx.Value(inProcessCallKey{}).(*inProcessCall)
	if call == nil || call.owner != p || call.left == 0 {
		call = &inProcessCall{owner: p, done: make(chan struct{})}
		wait = call
	}
	ctx = context.WithValue(ctx, inProcessCallKey{}, call)
	for _, e := range events {
		p.queue = append(p.queue, inProcessTask{ctx: ctx, db: db, event: e, call: call})
	}
	call.left += len(events)
	if call.left == 0 {
		close(call.done) // repeated appends only
	}
	work = !p.busy && len(p.queue) > 0
	p.busy = p.busy || work
	return results, wait, work, nil
}

// work delivers until the queue is empty. There is one queue and one at work on
// it, so that each consumer sees each record's events in order.
func (p *InProcess) work() {
	for {
		p.mu.Lock()
		if len(p.queue) == 0 {
			p.busy = false
			p.mu.Unlock()
			return
		}
		task := p.queue[0]
		p.queue = p.queue[1:]
		p.mu.Unlock()
		err := p.deliver(task)
		p.mu.Lock()
		if err != nil {
			task.call.errs = append(task.call.errs, err)
		}
		if task.call.left--; task.call.left == 0 {
			close(task.call.done)
		}
		p.mu.Unlock()
	}
}

func (p *InProcess) deliver(task inProcessTask) error {
	var errs []error
	for i, c := range p.consumers {
		definition := p.registry.Consumers[i]
		if !definition.Hosted {
			continue
		}
		var err error
		switch p.registry.Applies(definition, task.event.Type, task.event.Version) {
		case core.NotApplicable:
			continue
		case core.UnsupportedVersion:
			if definition.OnUnsupported != SkipUnsupported {
				err = invalid(core.CodeUnsupportedVersion, "Version", "version %d of %s is not supported", task.event.Version, task.event.Type)
			}
		case core.Applies:
			err = run(task, c, &Delivery{
				Event: ownEvent(task.event), Consumer: c.Name, Attempt: 1, Mode: Live, IdempotencyKey: task.event.ID.String() + ":" + c.Name,
			})
		}
		err = readable(err)
		if verdict, _, _ := keylinetype.Judge(err); verdict != VerdictCompleted && verdict != VerdictSkip {
			errs = append(errs, fmt.Errorf("consumer %s: event %d of %s: %w", c.Name, task.event.Seq, task.event.Record, err))
		}
	}
	return errors.Join(errs...)
}

// errHandlerGone is the failure of a handler that has ended its goroutine: that of a test which has given up, most often.
var errHandlerGone = errors.New("the handler ended its goroutine")

// run calls the handler, on a goroutine of its own, as a worker does: what ends that goroutine ends nobody who waits. A panic is an error,
// as it is to a worker.
func run(task inProcessTask, c Consumer, d *Delivery) error {
	err, done := errHandlerGone, make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if v := recover(); v != nil {
				err = fmt.Errorf("panic: %v", v)
			}
		}()
		err = call(task, c, d)
	}()
	<-done
	return err
}

func call(task inProcessTask, c Consumer, d *Delivery) error {
	ctx := task.ctx
	if c.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.Timeout)
		defer cancel()
	}
	switch {
	case c.Handle != nil:
		return c.Handle(ctx, d)
	case c.HandleBatch != nil:
		return c.HandleBatch(ctx, []*Delivery{d})
	}
	tx, ok := task.db.(pgx.Tx)
	if !ok {
		return errors.New("HandleTx needs the transaction (a pgx.Tx) that the event is appended in")
	}
	return pgx.BeginFunc(ctx, tx, func(savepoint pgx.Tx) error { return c.HandleTx(ctx, savepoint, d) })
}
