package keyline

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// instrumentation names this library's spans and metrics.
const instrumentation = "github.com/keylinehq/keyline"

func orGlobalTracers(p trace.TracerProvider) trace.TracerProvider {
	if p == nil {
		return otel.GetTracerProvider()
	}
	return p
}

func orGlobalMeters(p metric.MeterProvider) metric.MeterProvider {
	if p == nil {
		return otel.GetMeterProvider()
	}
	return p
}

// processTelemetry makes the process spans and the metrics of deliveries.
type processTelemetry struct {
	clock    clock.Clock
	log      *slog.Logger
	failing  sync.Once // to say that tracers or meters panic
	tracer   trace.Tracer
	silent   bool // no spans: the provider makes none
	duration metric.Float64Histogram
	messages metric.Int64Counter
	lag      metric.Float64Histogram
}

func newProcessTelemetry(cfg Config, c clock.Clock) (*processTelemetry, error) {
	tracers := orGlobalTracers(cfg.TracerProvider)
	_, silent := tracers.(noop.TracerProvider)
	t := &processTelemetry{clock: c, log: cfg.Logger, tracer: tracers.Tracer(instrumentation, trace.WithSchemaURL(semconv.SchemaURL)), silent: silent}
	meter := orGlobalMeters(cfg.MeterProvider).Meter(instrumentation)
	var err error
	if t.duration, err = meter.Float64Histogram("messaging.process.duration", metric.WithUnit("s"), metric.WithExplicitBucketBoundaries(seconds...),
		metric.WithDescription("Duration of a delivery's handler")); err != nil {
		return nil, err
	}
	if t.messages, err = meter.Int64Counter("messaging.client.consumed.messages", metric.WithUnit("{message}"),
		metric.WithDescription("Events delivered to consumers, by outcome")); err != nil {
		return nil, err
	}
	if t.lag, err = meter.Float64Histogram("keyline.delivery.lag", metric.WithUnit("s"), metric.WithExplicitBucketBoundaries(seconds...),
		metric.WithDescription("Time from an event's append to the start of its handler's first run; not of catch-ups and replays")); err != nil {
		return nil, err
	}
	return t, nil
}

// seconds are the bounds of histograms of time, from a millisecond to an hour: the default ones are meant for
// milliseconds, and have nothing below five.
var seconds = []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600}

// consumerTelemetry holds a consumer's attributes, made once, as the calls take them.
type consumerTelemetry struct {
	span     []attribute.KeyValue
	outcomes map[string]outcomeOptions
	lag      []metric.RecordOption
}

type outcomeOptions struct {
	record []metric.RecordOption
	add    []metric.AddOption
}

var outcomeNames = []string{"completed", "retry", "permanent", "snoozed", "skipped", "panic", "cancelled", "fenced"}

func newConsumerTelemetry(name string) *consumerTelemetry {
	common := []attribute.KeyValue{semconv.MessagingSystemKey.String("keyline"), semconv.MessagingConsumerGroupName(name)}
	c := &consumerTelemetry{
		span: append(common[:2:2], semconv.MessagingOperationTypeProcess, semconv.MessagingOperationName("process")),
		lag:  []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(common...))}, outcomes: map[string]outcomeOptions{},
	}
	for _, o := range outcomeNames {
		set := metric.WithAttributeSet(attribute.NewSet(append(common[:2:2], attribute.String(keylinetype.AttrOutcome, o))...))
		c.outcomes[o] = outcomeOptions{[]metric.RecordOption{set}, []metric.AddOption{set}}
	}
	return c
}

// processing is one delivery while its handler runs.
type processing struct {
	t     *processTelemetry
	c     *consumerTelemetry
	timed bool // the duration is measured
	begun time.Duration
	n     int64      // of events
	span  trace.Span // nil: none is made
}

// start begins a delivery's span. The first attempt is a child of the append
// and linked to it; a retry, a replay, a catch-up or a batch is a new root with links, or
// one trace would grow without end.
func (t *processTelemetry) start(ctx context.Context, c *consumerTelemetry, w *core.Work, batch []*Delivery) (in context.Context, p processing) {
	in, p = ctx, processing{t: t, c: c, n: int64(len(batch))}
	defer t.harmless()
	// When a retry or a catch-up begins says nothing of how soon events are delivered, nor does the end of a snooze,
	// which leaves an attempt uncounted.
	if first := batch[0]; first.Attempt == 1 && first.Mode == Live && w.Checkpoint.State != core.Backoff && t.lag.Enabled(ctx) {
		t.lag.Record(ctx, t.clock.Now().Sub(first.CreatedAt).Seconds(), c.lag...)
	}
	if p.timed = t.duration.Enabled(ctx); p.timed {
		p.begun = t.clock.Mono()
	}
	if !t.silent {
		in, p.span = t.span(ctx, c, w, batch)
	}
	return in, p
}

// harmless ends a panic of a tracer or a meter: what they do is no outcome of a delivery, whose handler may have committed. It
// says so once. The logger is the program's, too.
func (t *processTelemetry) harmless() {
	value := recover()
	if value == nil {
		return
	}
	stack := string(debug.Stack())
	t.failing.Do(func() {
		asked(func() {
			t.log.Error("keyline: tracers or meters panic; no more is said of it", "panic", fmt.Sprint(value), "stack", stack)
		})
	})
}

func (p *processing) end(ctx context.Context, out *core.Outcome) {
	defer p.t.harmless()
	if p.span == nil && !p.timed && !p.t.messages.Enabled(ctx) {
		return
	}
	name := outcomeName(out)
	options := p.c.outcomes[name]
	if p.timed {
		p.t.duration.Record(ctx, (p.t.clock.Mono() - p.begun).Seconds(), options.record...)
	}
	p.t.messages.Add(ctx, p.n, options.add...)
	if p.span == nil {
		return
	}
	p.span.SetAttributes(attribute.String(keylinetype.AttrOutcome, name))
	if out.Err != nil && name != "skipped" && name != "snoozed" {
		// The error's text may hold what the payload holds: its code is enough.
		p.span.SetAttributes(semconv.ErrorTypeKey.String(errorCode(out)))
		p.span.SetStatus(codes.Error, name)
	}
	p.span.End()
}

func (t *processTelemetry) span(ctx context.Context, c *consumerTelemetry, w *core.Work, batch []*Delivery) (context.Context, trace.Span) {
	first := batch[0]
	attrs := append(c.span[:len(c.span):len(c.span)],
		semconv.MessagingDestinationName(first.RecordType()), semconv.MessagingMessageID(first.ID.String()),
		attribute.String(keylinetype.AttrRecordKey, first.Key.Record), attribute.Int64(keylinetype.AttrEventSeq, first.Seq),
		attribute.String(keylinetype.AttrEventType, first.Type), attribute.Int(keylinetype.AttrEventVersion, first.Version),
		attribute.Int(keylinetype.AttrAttempt, first.Attempt), attribute.String(keylinetype.AttrMode, string(first.Mode)),
		attribute.Bool(keylinetype.AttrRedelivered, first.Redelivered))
	if first.Tenant != "" {
		attrs = append(attrs, attribute.String(keylinetype.AttrTenant, first.Tenant))
	}
	if len(batch) > 1 {
		attrs = append(attrs, semconv.MessagingBatchMessageCount(len(batch)))
	} else {
		attrs = append(attrs, semconv.MessagingMessageBodySize(len(first.Payload)))
	}
	if id := first.Headers[HeaderCorrelationID]; id != "" {
		attrs = append(attrs, semconv.MessagingMessageConversationID(id))
	}
	var links []trace.Link
	for _, d := range batch {
		if sc := appendedIn(d.Headers); sc.IsValid() {
			links = append(links, trace.Link{SpanContext: sc})
		}
	}
	options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(attrs...), trace.WithLinks(links...)}
	if len(links) > 0 && len(batch) == 1 && first.Attempt == 1 && first.Mode == Live && !w.Redelivered {
		ctx = trace.ContextWithRemoteSpanContext(ctx, links[0].SpanContext)
	} else {
		options = append(options, trace.WithNewRoot())
	}
	return t.tracer.Start(ctx, "process "+w.Consumer.Name, options...)
}

// appendedIn is the span in which an event was appended.
func appendedIn(headers map[string]string) trace.SpanContext {
	if headers[HeaderTraceparent] == "" {
		return trace.SpanContext{}
	}
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier(headers))
	return trace.SpanContextFromContext(ctx)
}

func outcomeName(out *core.Outcome) string {
	switch {
	case out.Err == errPanicked: //nolint:errorlint // errors.Is would ask the handler's error
		return "panic"
	case out.Fenced:
		return "fenced"
	case out.Cancelled:
		return "cancelled"
	}
	switch v, _, _ := Judge(out.Err); v {
	case VerdictCompleted:
		return "completed"
	case VerdictPermanent:
		return "permanent"
	case VerdictSnooze:
		return "snoozed"
	case VerdictSkip:
		return "skipped"
	default:
		return "retry"
	}
}

func errorCode(out *core.Outcome) string {
	if out.Err == errPanicked { //nolint:errorlint // likewise
		return core.CodePanic
	}
	return ErrorCode(out.Err)
}
