package keylinetest

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline"
)

// Options are how a Worker works; the zero value is what db.Worker takes.
type Options struct {
	// Config is the worker's; its Schema and Logger are set where they are not.
	Config keyline.Config
	// KeepDelays leaves the consumers' retry policies and circuit breakers as they are. Run
	// then waits for a retry only within Within.
	KeepDelays bool
	// Within is how long Run waits for what is not due yet, such as a snoozed delivery. Default 1 s.
	Within time.Duration
	// Timeout ends a Run that does not come to an end, as where handlers append without end, and fails the test. Default 1 min.
	Timeout time.Duration
}

// Worker runs consumers when it is told to, and captures what they are given.
type Worker struct {
	db        *DB
	options   Options
	consumers []keyline.Consumer

	mu  sync.Mutex
	got []Delivery
}

// Delivery is one run of a handler. Of a batch each delivery is one, with the batch's outcome.
type Delivery struct {
	keyline.Delivery
	// Err is what the handler returned; ErrPanicked where it did not return.
	Err error
}

// Worker returns what runs consumers. The first Run registers them: one that starts now,
// which is the default, gets the events that nobody is done with by then, so that it does not matter whether a test
// appends before or after this call. Pauses between runs are shortened to nothing and circuit breakers switched off; the
// number of runs stays (Options.KeepDelays).
func (db *DB) Worker(consumers ...keyline.Consumer) *Worker {
	db.t.Helper()
	return db.WorkerWith(Options{}, consumers...)
}

// WorkerWith is Worker with options.
func (db *DB) WorkerWith(options Options, consumers ...keyline.Consumer) *Worker {
	db.t.Helper()
	if options.Within == 0 {
		options.Within = time.Second
	}
	if options.Timeout == 0 {
		options.Timeout = time.Minute
	}
	if options.Config.Schema == "" {
		options.Config.Schema = db.Schema
	}
	if options.Config.Logger == nil {
		options.Config.Logger = slog.New(slog.NewTextHandler(db.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	w := &Worker{db: db, options: options, consumers: slices.Clone(consumers)}
	for i := range w.consumers {
		c := &w.consumers[i]
		if !options.KeepDelays {
			c.Retry, c.Breaker.Disabled = atOnce(c.Retry), true
		}
		w.capture(c)
	}
	return w
}

// atOnce is a policy with as many runs and no pauses.
func atOnce(p keyline.RetryPolicy) keyline.RetryPolicy {
	runs := p.Delays
	if runs == nil {
		runs = keyline.DefaultRetryDelays()
	}
	p.Delays = make([]time.Duration, len(runs))
	for i := range p.Delays {
		p.Delays[i] = time.Millisecond
	}
	return p
}

// Run delivers what is due, and what comes due meanwhile, until nothing is left, and returns the runs
// that it has made. Where it cannot finish (Options.Timeout), the test fails.
func (w *Worker) Run() []Delivery {
	t := w.db.t
	t.Helper()
	before := len(w.Deliveries())
	worker, err := keyline.NewWorker(w.db.Pool, w.options.Config, w.consumers...)
	if err != nil {
		t.Fatalf("keylinetest: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), w.options.Timeout)
	defer cancel()
	report, err := worker.Drain(ctx, keyline.DrainOptions{Within: w.options.Within})
	switch {
	case err != nil:
		t.Fatalf("keylinetest: %v", err)
	case !report.Drained:
		t.Fatalf("keylinetest: the worker was stopped before it was done: %+v", report.Status)
	}
	return w.Deliveries()[before:]
}

// Deliveries are all runs so far, in the order in which they ended. Runs of one
// record and consumer are in the order of its events.
func (w *Worker) Deliveries() []Delivery {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.got)
}

// Delivered are the deliveries that a consumer has handled without an error.
func (w *Worker) Delivered(consumer string) []Delivery {
	return slices.DeleteFunc(w.Deliveries(), func(d Delivery) bool { return d.Consumer != consumer || d.Err != nil })
}

// AssertDelivered reports an error unless a consumer has handled exactly these
// events, each once; those of one record in this order; and none of them became a dead letter though its handler
// returned nil, as a HandleTx may that has passed over an error of a statement.
func (w *Worker) AssertDelivered(consumer string, events ...keyline.Appended) {
	w.db.t.Helper()
	want, got := map[keyline.Key][]int64{}, map[keyline.Key][]int64{}
	for _, e := range events {
		want[e.Key] = append(want[e.Key], e.Seq)
	}
	for _, d := range w.Delivered(consumer) {
		got[d.Key] = append(got[d.Key], d.Seq)
	}
	for key, seqs := range want {
		if !slices.Equal(seqs, got[key]) {
			w.db.t.Errorf("keylinetest: %s has handled events %v of %s, want %v", consumer, got[key], key.Record, seqs)
		}
	}
	for key, seqs := range got {
		if want[key] == nil {
			w.db.t.Errorf("keylinetest: %s has handled events %v of %s, want none", consumer, seqs, key.Record)
		}
	}
	for _, d := range w.db.DeadLetters() {
		if d.Consumer == consumer && slices.ContainsFunc(w.Delivered(consumer), func(got Delivery) bool { return got.ID == d.EventID }) {
			w.db.t.Errorf("keylinetest: %s has returned nil for event %d of %s, and its delivery failed all the same: %s", consumer, d.Seq, d.Key, d.Message)
		}
	}
}

// capture puts a recorder in front of a consumer's handler.
func (w *Worker) capture(c *keyline.Consumer) {
	handle, handleTx, handleBatch := c.Handle, c.HandleTx, c.HandleBatch
	if handle != nil {
		c.Handle = func(ctx context.Context, d *keyline.Delivery) error {
			return w.observed([]*keyline.Delivery{d}, func() error { return handle(ctx, d) })
		}
	}
	if handleTx != nil {
		c.HandleTx = func(ctx context.Context, tx pgx.Tx, d *keyline.Delivery) error {
			return w.observed([]*keyline.Delivery{d}, func() error { return handleTx(ctx, tx, d) })
		}
	}
	if handleBatch != nil {
		c.HandleBatch = func(ctx context.Context, batch []*keyline.Delivery) error {
			return w.observed(batch, func() error { return handleBatch(ctx, batch) })
		}
	}
}

// ErrPanicked is the error of a run that panicked, or ended its goroutine. The dead letter, or the failure, has the value.
var ErrPanicked = errors.New("keylinetest: the handler panicked")

// observed runs a handler and keeps what came of it. A panic goes through, with its stack.
func (w *Worker) observed(batch []*keyline.Delivery, handle func() error) error {
	given := make([]Delivery, len(batch))
	for i, d := range batch {
		given[i].Delivery = *d // as it was before the handler had it
		given[i].Payload, given[i].Headers = slices.Clone(d.Payload), maps.Clone(d.Headers)
	}
	err := ErrPanicked
	defer func() {
		for i := range given {
			given[i].Err = err
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.got = append(w.got, given...)
	}()
	err = handle()
	return err
}
