package keyline_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
)

// observed is a client with everything that it says.
type observed struct {
	*keyline.Client
	spans  *tracetest.SpanRecorder
	tracer trace.Tracer
	reader *metric.ManualReader
}

func observe(t *testing.T) observed {
	t.Helper()
	o := observed{spans: tracetest.NewSpanRecorder(), reader: metric.NewManualReader()}
	traces := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(o.spans))
	o.tracer = traces.Tracer("application")
	o.Client = newClient(t, keyline.ClientConfig{TracerProvider: traces, MeterProvider: metric.NewMeterProvider(metric.WithReader(o.reader))})
	return o
}

func attributes(list []attribute.KeyValue) map[string]string {
	m := map[string]string{}
	for _, a := range list {
		m[string(a.Key)] = a.Value.String()
	}
	return m
}

// counts returns a counter's points by their attributes, "" for none.
func (o observed) counts(t *testing.T, name string) map[string]int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := o.reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	points := map[string]int64{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name != name {
				continue
			}
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					points[encode(p.Attributes)] = p.Value
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					points[encode(p.Attributes)] = int64(p.Count)
					if !slices.Contains(p.Bounds, 0.005) {
						t.Errorf("%s, in seconds, is counted by %v", name, p.Bounds)
					}
				}
			}
		}
	}
	return points
}

func encode(set attribute.Set) string { return set.Encoded(attribute.DefaultEncoder()) }

func TestAppendSpanIsTheEventsTraceparent(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	o := observe(t)
	ctx, request := o.tracer.Start(t.Context(), "request")
	a := must(o.Append(ctx, db.Pool(), keyline.NewEvent{
		Key: keyline.Key{Tenant: "acme", Record: "activity:42"}, Type: "activity.completed", Version: 2, Payload: 1, CorrelationID: "corr",
		Headers: map[string]string{keyline.HeaderTraceparent: "00-11111111111111111111111111111111-2222222222222222-01", keyline.HeaderTracestate: "other=1"},
	}))(t)
	request.End()
	span := o.spans.Ended()[0]
	if span.Name() != "append activity.completed" || span.SpanKind() != trace.SpanKindProducer || span.Parent().SpanID() != request.SpanContext().SpanID() {
		t.Errorf("span %q of kind %s under %s", span.Name(), span.SpanKind(), span.Parent().SpanID())
	}
	want := map[string]string{
		"messaging.system": "keyline", "messaging.operation.name": "append", "messaging.operation.type": "send",
		"messaging.destination.name": "activity", "messaging.message.id": a.ID.String(), "messaging.message.body.size": "1",
		"messaging.message.conversation_id": "corr", "keyline.record.key": "activity:42", "keyline.tenant": "acme",
		"keyline.event.type": "activity.completed", "keyline.event.version": "2", "keyline.event.seq": "1", "keyline.append.duplicate": "false",
	}
	if diff := cmp.Diff(want, attributes(span.Attributes())); diff != "" {
		t.Errorf("attributes (-want +got)\n%s", diff)
	}
	headers := must(o.Events(t.Context(), db.Pool(), a.Key, 0, 0))(t)[0].Headers
	traceparent := "00-" + span.SpanContext().TraceID().String() + "-" + span.SpanContext().SpanID().String() + "-01"
	if diff := cmp.Diff(map[string]string{keyline.HeaderTraceparent: traceparent, keyline.HeaderCorrelationID: "corr"}, headers); diff != "" {
		t.Errorf("headers (-want +got)\n%s", diff)
	}
}

func TestTraceparentWithoutTracing(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	client := newClient(t, keyline.ClientConfig{}) // OpenTelemetry's global provider makes no spans here
	given := map[string]string{keyline.HeaderTraceparent: "00-11111111111111111111111111111111-2222222222222222-01", keyline.HeaderTracestate: "a=1"}
	event := keyline.NewEvent{Key: keyline.Key{Record: "r"}, Type: "t", Headers: given}
	must(client.Append(t.Context(), db.Pool(), event))(t)
	if len(given) != 2 {
		t.Errorf("the caller's headers were changed: %v", given)
	}
	// A remote parent in the context is passed on.
	parent := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{3}, SpanID: trace.SpanID{4}, Remote: true})
	must(client.AppendMany(trace.ContextWithRemoteSpanContext(t.Context(), parent), db.Pool(), []keyline.NewEvent{event}))(t)
	events := must(client.Events(t.Context(), db.Pool(), event.Key, 0, 0))(t)
	if !cmp.Equal(events[0].Headers, given) {
		t.Errorf("headers %v, want the caller's %v", events[0].Headers, given)
	}
	want := map[string]string{keyline.HeaderTraceparent: "00-03000000000000000000000000000000-0400000000000000-00"}
	if !cmp.Equal(events[1].Headers, want) {
		t.Errorf("headers %v, want %v", events[1].Headers, want)
	}
}

func TestAppendSaysWhatItDid(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	o := observe(t)
	batch := []keyline.NewEvent{
		{Key: keyline.Key{Record: "activity:1"}, Type: "t", IdempotencyKey: "k"}, {Key: keyline.Key{Record: "activity:1"}, Type: "t", IdempotencyKey: "k"},
		{Key: keyline.Key{Record: "deal:1"}, Type: "t"}, {Type: "u"},
	}
	results := must(o.AppendMany(t.Context(), db.Pool(), batch))(t)
	_, err := o.Append(t.Context(), db.Pool(), keyline.NewEvent{Key: keyline.Key{Record: "deal:1"}, Type: "t", ExpectedSeq: ptr(int64(9))})
	wantError(t, err, keyline.ErrConflict, keyline.CodeWrongExpectedSeq)
	_, err = o.Append(t.Context(), db.Pool(), keyline.NewEvent{Key: keyline.Key{Record: "deal:1"}, Type: strings.Repeat("x", 1000)})
	wantError(t, err, keyline.ErrInvalid, keyline.CodeInvalidArgument)

	spans := o.spans.Ended()
	if len(spans) != 3 {
		t.Fatalf("%d spans, want 3", len(spans))
	}
	if a := attributes(spans[0].Attributes()); spans[0].Name() != "append" || a["messaging.batch.message_count"] != "4" || a["messaging.destination.name"] != "" {
		t.Errorf("a batch over two destinations: %q %v", spans[0].Name(), a)
	}
	for _, r := range results {
		h := must(o.Events(context.WithoutCancel(t.Context()), db.Pool(), r.Key, r.Seq, 1))(t)[0].Headers
		if !strings.Contains(h[keyline.HeaderTraceparent], spans[0].SpanContext().SpanID().String()) {
			t.Errorf("%v carries %v, want the span of its batch", r.Key, h)
		}
	}
	for i, code := range map[int]string{1: keyline.CodeWrongExpectedSeq, 2: keyline.CodeInvalidArgument} {
		if s := spans[i]; s.Status().Code != codes.Error || s.Status().Description != code || attributes(s.Attributes())["error.type"] != code {
			t.Errorf("span %d: status %v, attributes %v, want %s", i, s.Status(), attributes(s.Attributes()), code)
		}
	}
	if spans[2].Name() != "append" {
		t.Errorf("a type that is no name became a span's name: %.40q", spans[2].Name())
	}
	const base = "messaging.operation.name=append,messaging.system=keyline"
	for name, want := range map[string]map[string]int64{
		"messaging.client.sent.messages": {
			"messaging.destination.name=activity," + base: 2, "messaging.destination.name=deal," + base: 1, "messaging.destination.name=record," + base: 1,
			"error.type=wrong_expected_seq,messaging.destination.name=deal," + base: 1,
			"error.type=invalid_argument,messaging.destination.name=record," + base: 1,
		},
		"messaging.client.operation.duration": {
			"messaging.operation.name=append,messaging.operation.type=send,messaging.system=keyline":                                                               1,
			"error.type=wrong_expected_seq,messaging.destination.name=deal,messaging.operation.name=append,messaging.operation.type=send,messaging.system=keyline": 1,
			"error.type=invalid_argument,messaging.destination.name=record,messaging.operation.name=append,messaging.operation.type=send,messaging.system=keyline": 1,
		},
		"keyline.append.fallback_keys": {"": 1},
		"keyline.append.duplicates":    {"": 1},
	} {
		if diff := cmp.Diff(want, o.counts(t, name)); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}
