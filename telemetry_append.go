package keyline

import (
	"context"
	"errors"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/semconv/v1.43.0/messagingconv"
	"go.opentelemetry.io/otel/trace"

	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/keylinetype"
)

const (
	appendOperation = "append"
	appendSystem    = messagingconv.SystemAttr("keyline")
)

// appendTelemetry makes the span of each append and counts what it did.
type appendTelemetry struct {
	tracer    trace.Tracer
	clock     clock.Clock
	sent      messagingconv.ClientSentMessages
	duration  messagingconv.ClientOperationDuration
	fallbacks metric.Int64Counter
	repeated  metric.Int64Counter
}

func newAppendTelemetry(cfg ClientConfig) (*appendTelemetry, error) {
	traces := orGlobalTracers(cfg.TracerProvider)
	meter := orGlobalMeters(cfg.MeterProvider).Meter(instrumentation, metric.WithSchemaURL(semconv.SchemaURL))
	t := &appendTelemetry{tracer: traces.Tracer(instrumentation, trace.WithSchemaURL(semconv.SchemaURL)), clock: clock.Real()}
	var errs [4]error
	t.sent, errs[0] = messagingconv.NewClientSentMessages(meter)
	t.duration, errs[1] = messagingconv.NewClientOperationDuration(meter, metric.WithExplicitBucketBoundaries(seconds...))
	t.fallbacks, errs[2] = meter.Int64Counter("keyline.append.fallback_keys", metric.WithUnit("{event}"),
		metric.WithDescription("Number of events without a usable record key, which became their own record."))
	t.repeated, errs[3] = meter.Int64Counter("keyline.append.duplicates", metric.WithUnit("{event}"),
		metric.WithDescription("Number of appends that wrote nothing because their idempotency key had been used for the same event."))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, wrong("ClientConfig.MeterProvider", "%v", err)
	}
	return t, nil
}

// start begins the producer span, whose traceparent goes into the events. end
// is given what was prepared and what came of it; the caller's transaction may
// still roll back afterwards.
func (t *appendTelemetry) start(ctx context.Context, events []NewEvent) (_ context.Context, end func([]prepared, []Appended, error)) {
	name := appendOperation
	if one := soleType(events); one != "" {
		name += " " + one
	}
	begun := t.clock.Mono()
	ctx, span := t.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(
		semconv.MessagingSystemKey.String(string(appendSystem)),
		semconv.MessagingOperationName(appendOperation),
		semconv.MessagingOperationTypeSend))
	return ctx, func(batch []prepared, results []Appended, err error) {
		defer span.End()
		t.count(ctx, batch, results, err, (t.clock.Mono() - begun).Seconds())
		if !span.IsRecording() {
			return
		}
		span.SetAttributes(destination(batch)...)
		if len(batch) == 1 {
			span.SetAttributes(eventAttributes(batch[0], results)...)
		} else {
			span.SetAttributes(semconv.MessagingBatchMessageCount(len(batch)))
		}
		if err != nil {
			// The text may hold what the event holds: its code is enough.
			span.SetAttributes(semconv.ErrorTypeKey.String(ErrorCode(err)))
			span.SetStatus(codes.Error, ErrorCode(err))
		}
	}
}

func (t *appendTelemetry) count(ctx context.Context, batch []prepared, results []Appended, err error, seconds float64) {
	attrs := destination(batch)
	if err != nil {
		attrs = append(attrs, semconv.ErrorTypeKey.String(ErrorCode(err)))
	}
	t.duration.Record(ctx, seconds, appendOperation, appendSystem, append(attrs, semconv.MessagingOperationTypeSend)...)
	if err != nil {
		t.sent.Add(ctx, int64(len(batch)), appendOperation, appendSystem, attrs...)
		return
	}
	sent := map[string]int64{}
	var fallbacks, repeated int64
	for i, p := range batch {
		sent[p.key().RecordType()]++
		if p.record == "" {
			fallbacks++
		}
		if results[i].Duplicate {
			repeated++
		}
	}
	for name, n := range sent {
		t.sent.Add(ctx, n, appendOperation, appendSystem, semconv.MessagingDestinationName(name))
	}
	if fallbacks > 0 {
		t.fallbacks.Add(ctx, fallbacks)
	}
	if repeated > 0 {
		t.repeated.Add(ctx, repeated)
	}
}

func eventAttributes(p prepared, results []Appended) []attribute.KeyValue {
	attrs := []attribute.KeyValue{
		attribute.String(keylinetype.AttrEventType, p.eventType), attribute.Int(keylinetype.AttrEventVersion, p.version), attribute.String(keylinetype.AttrRecordKey, p.record), semconv.MessagingMessageBodySize(len(p.payload)),
	}
	if p.tenant != "" {
		attrs = append(attrs, attribute.String(keylinetype.AttrTenant, p.tenant))
	}
	if c := p.headers[HeaderCorrelationID]; c != "" {
		attrs = append(attrs, semconv.MessagingMessageConversationID(c))
	}
	if len(results) == 1 && results[0].Seq > 0 {
		a := results[0]
		attrs = append(attrs, semconv.MessagingMessageID(a.ID.String()), attribute.String(keylinetype.AttrRecordKey, a.Key.Record), attribute.Int64(keylinetype.AttrEventSeq, a.Seq),
			attribute.Bool(keylinetype.AttrDuplicate, a.Duplicate))
	}
	return attrs
}

// soleType is the type of all events, where they have one that can be a name.
func soleType(events []NewEvent) string {
	for _, e := range events {
		if e.Type != events[0].Type {
			return ""
		}
	}
	if len(events[0].Type) > maxTypeBytes || !utf8.ValidString(events[0].Type) {
		return ""
	}
	return events[0].Type
}

// destination is the record type, where all events agree on it.
func destination(batch []prepared) []attribute.KeyValue {
	name := batch[0].key().RecordType()
	for _, p := range batch {
		if p.key().RecordType() != name {
			return nil
		}
	}
	return []attribute.KeyValue{semconv.MessagingDestinationName(name)}
}
