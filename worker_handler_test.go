package keyline_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/embedded"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
)

// unfit is an error whose methods panic where it is nil, as those of most error types do.
type unfit struct {
	text  string
	cause error
}

func (e *unfit) Error() string { return e.text }
func (e *unfit) Unwrap() error { return e.cause }

// mute is one of which only the code cannot be had.
type mute struct{}

func (mute) Error() string     { return "mute" }
func (mute) ErrorCode() string { panic("no code") }

// deaf is one that can say nothing, but whose chain can be walked.
type deaf struct{}

func (deaf) Error() string { panic("no text") }

// picky is one that can be read, and takes it for granted with what it is compared.
type picky struct{ code int }

func (*picky) Error() string { return "picky" }

func (e *picky) Is(target error) bool { return target.(*picky).code == e.code } //nolint:forcetypeassert // as careless code does

// TestAHandlersErrorThatCannotBeReadIsAnAttempt: what panics while the runtime looks at an error is a failure of that
// delivery, like any other; not of the record's machine, which would run it again for ever, nor of the process.
func TestAHandlersErrorThatCannotBeReadIsAnAttempt(t *testing.T) {
	t.Parallel()
	none := (*unfit)(nil)
	for name, c := range map[string]struct {
		err  error
		runs int // of two that the policy allows
	}{
		"nil pointer": {none, 2}, "its code": {mute{}, 2}, "its text, permanent": {keyline.Permanent(deaf{}), 1},
		"in a chain": {fmt.Errorf("do: %w", error(&unfit{"do", none})), 2},
	} {
		for kind, handler := range map[string]func(*keyline.Consumer, func(*keyline.Delivery) error){
			"Handle": func(c *keyline.Consumer, f func(*keyline.Delivery) error) {
				c.Handle = func(_ context.Context, d *keyline.Delivery) error { return f(d) }
			},
			"HandleTx": func(c *keyline.Consumer, f func(*keyline.Delivery) error) {
				c.HandleTx = func(_ context.Context, _ pgx.Tx, d *keyline.Delivery) error { return f(d) }
			},
			"HandleBatch": func(c *keyline.Consumer, f func(*keyline.Delivery) error) {
				c.HandleBatch = func(_ context.Context, b []*keyline.Delivery) error { return f(b[0]) }
				c.BatchSize = 1
			},
		} {
			t.Run(name+", "+kind, func(t *testing.T) {
				t.Parallel()
				db := testdb.New(t)
				s := newSeen()
				consumer := keyline.Consumer{Name: "it", Types: []string{"*"}, Effect: keyline.Database(), Retry: quick(0)}
				handler(&consumer, func(d *keyline.Delivery) error {
					s.add(d)
					if d.Seq == 1 {
						return c.err
					}
					return nil
				})
				// Without meters nobody looks at the error before the goroutine of the run ends.
				startWorker(t, db, keyline.Config{MeterProvider: metricnoop.NewMeterProvider()}, consumer)
				appendN(t, db, "thing", 2)
				s.wait(t, c.runs+1)
				settled(t, db)
				if n := s.count(); n != c.runs+1 {
					t.Errorf("%d runs, want %d", n, c.runs+1)
				}
				code := scalar[string](t, db.Pool(), "select error_code from keyline.dead_letters where seq = 1")
				text := scalar[string](t, db.Pool(), "select error_message from keyline.dead_letters where seq = 1")
				if code != "unreadable_error" || !strings.Contains(text, "cannot be read") {
					t.Errorf("dead letter with %q, %q", code, text)
				}
			})
		}
	}
}

// badTracers make one whose first span panics when it begins, and the others when they end.
type badTracers struct{ embedded.TracerProvider }

func (badTracers) Tracer(string, ...trace.TracerOption) trace.Tracer { return &badTracer{} }

type badTracer struct {
	embedded.Tracer

	spans atomic.Int32
}

func (b *badTracer) Start(ctx context.Context, name string, _ ...trace.SpanStartOption) (context.Context, trace.Span) {
	if b.spans.Add(1) == 1 {
		panic("no span can be begun")
	}
	ctx, s := tracenoop.NewTracerProvider().Tracer("").Start(ctx, name)
	return ctx, badSpan{s}
}

type badSpan struct{ trace.Span }

func (badSpan) End(...trace.SpanEndOption) { panic("no span can be ended") }

// What a tracer does is no outcome of a handler, which may have committed; nor is what an error does that is compared.
func TestTelemetryIsNoOutcomeOfADelivery(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	exec(t, db.Pool(), "create table effects (consumer text, seq bigint)")
	run := func(ctx context.Context, tx pgx.Tx, d *keyline.Delivery) error {
		s.add(d)
		if d.Seq == 3 {
			return keyline.Permanent(&picky{1})
		}
		if tx != nil {
			if _, err := tx.Exec(ctx, "insert into effects values ($1, $2)", d.Consumer, d.Seq); err != nil {
				return err
			}
		}
		return nil
	}
	startWorker(t, db, keyline.Config{TracerProvider: badTracers{}, Logger: slog.New(slog.DiscardHandler)},
		keyline.Consumer{Name: "plain", Types: []string{"*"}, Effect: keyline.None(), Retry: quick(0),
			Handle: func(ctx context.Context, d *keyline.Delivery) error { return run(ctx, nil, d) }},
		keyline.Consumer{Name: "tx", Types: []string{"*"}, Effect: keyline.Database(), Retry: quick(0), HandleTx: run})
	appendN(t, db, "r", 3)
	s.wait(t, 6)
	settled(t, db)
	if n := s.count(); n != 6 {
		t.Errorf("%d runs, want 6", n)
	}
	if got := scalar[string](t, db.Pool(), "select string_agg(consumer || seq, ' ' order by seq) from effects"); got != "tx1 tx2" {
		t.Errorf("effects: %s", got)
	}
	if got := scalar[string](t, db.Pool(), "select string_agg(distinct reason || ' ' || error_code || ' ' || seq, ', ') from keyline.dead_letters"); got != "permanent error 3" {
		t.Errorf("dead letters: %s", got)
	}
}

// TestWhatAHandlerDoesToItsEventStaysWithIt: a handler that writes over its payload spoils it neither for its siblings
// nor for its own next attempt.
func TestWhatAHandlerDoesToItsEventStaysWithIt(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	s := newSeen()
	spoil := func(d *keyline.Delivery) {
		copied := *d
		copied.Payload, copied.Headers = []byte(string(d.Payload)), maps.Clone(d.Headers)
		s.add(&copied)
		for i := range d.Payload {
			d.Payload[i] = '!'
		}
		clear(d.Headers)
	}
	consumer := func(name string) keyline.Consumer {
		return keyline.Consumer{Name: name, Types: []string{"*"}, Effect: keyline.None(), Retry: quick(0, 0), BatchSize: 3,
			HandleBatch: func(_ context.Context, batch []*keyline.Delivery) error {
				for _, d := range batch {
					spoil(d)
				}
				if batch[0].Attempt < 3 {
					return errors.New("again")
				}
				return nil
			}}
	}
	startWorker(t, db, keyline.Config{}, consumer("a"), consumer("b"))
	client := newClient(t, keyline.ClientConfig{})
	must(client.Append(t.Context(), db.Pool(), keyline.NewEvent{Key: keyline.Key{Record: "thing"}, Type: "thing.done",
		Payload: map[string]int{"n": 7}, CorrelationID: "request", OccurredAt: time.Unix(1, 0)}))(t)
	s.wait(t, 6)
	for _, name := range []string{"a", "b"} {
		for _, d := range s.of(name, "thing") {
			if string(d.Payload) != `{"n": 7}` || d.Headers["correlation_id"] != "request" {
				t.Errorf("%s, attempt %d: %s %v", name, d.Attempt, d.Payload, d.Headers)
			}
		}
	}
}

// TestAHandlerGetsTheDeliveryThatMiddlewareHandsOn: one that decrypts a payload or brings it up to date does so on a copy.
func TestAHandlerGetsTheDeliveryThatMiddlewareHandsOn(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	s := newSeen()
	change := func(next keyline.Handler) keyline.Handler {
		return func(ctx context.Context, d *keyline.Delivery) error {
			other := *d
			other.Payload = []byte(`"changed"`)
			return next(ctx, &other)
		}
	}
	base := keyline.Consumer{Types: []string{"*"}, Effect: keyline.Database()}
	plain, tx, batch := base, base, base
	plain.Name, plain.Handle = "plain", func(_ context.Context, d *keyline.Delivery) error { s.add(d); return nil }
	tx.Name, tx.HandleTx = "tx", func(_ context.Context, _ pgx.Tx, d *keyline.Delivery) error { s.add(d); return nil }
	batch.Name = "batch"
	batch.HandleBatch = func(_ context.Context, list []*keyline.Delivery) error {
		for _, d := range list {
			s.add(d)
		}
		return nil
	}
	appendN(t, db, "thing", 2) // one batch
	startWorker(t, db, keyline.Config{Middleware: []func(keyline.Handler) keyline.Handler{change}}, plain, tx, batch)
	appendN(t, db, "other", 1)
	s.wait(t, 9)
	for _, name := range []string{"plain", "tx", "batch"} {
		if list := s.of(name, "other"); len(list) != 1 || string(list[0].Payload) != `"changed"` {
			t.Errorf("%s: %+v", name, list)
		}
	}
	if list := s.of("batch", "thing"); len(list) != 2 || string(list[0].Payload) != `"changed"` || string(list[1].Payload) != `{"n": 1}` {
		t.Errorf("batch: %+v", list)
	}
}

// Promise: HandleBatch gets as many as BatchSize says where as many wait, also more than a worker reads ahead for others.
func TestABatchIsAsLargeAsItMayBe(t *testing.T) {
	t.Parallel()
	for batch, want := range map[int][]int{0: {100, 100, 50}, 240: {240, 10}, 1_000_000: {250}} {
		t.Run(fmt.Sprint(batch), func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			appendN(t, db, "thing:1", 250)
			sizes := make(chan int, 250)
			startWorker(t, db, keyline.Config{}, keyline.Consumer{Name: "c", Types: []string{"*"}, Effect: keyline.None(), Start: keyline.Beginning(), BatchSize: batch,
				HandleBatch: func(_ context.Context, list []*keyline.Delivery) error { sizes <- len(list); return nil }})
			var got []int
			for sum := 0; sum < 250; sum += got[len(got)-1] {
				got = append(got, <-sizes)
			}
			if !slices.Equal(got, want) {
				t.Errorf("batches of %d, want %d", got, want)
			}
		})
	}
}
