package httpapi_test

import (
	"log/slog"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/examples/crm/crm"
	"github.com/keylinehq/keyline/examples/crm/httpapi"
	"github.com/keylinehq/keyline/examples/crm/internal/crmtest"
)

// Promise: one server span per request, in the caller's trace; the append is its
// child, and the event carries that on to whoever consumes it.
func TestARequestIsOneSpanThatTheEventContinues(t *testing.T) {
	t.Parallel()
	a := crmtest.New(t)
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	events, err := keyline.NewClient(keyline.ClientConfig{EventTypes: crm.EventTypes(), Strict: true, TracerProvider: provider})
	if err != nil {
		t.Fatal(err)
	}
	c := client{t, httpapi.New(crm.NewService(a.Pool, events), httpapi.Options{Logger: slog.New(slog.DiscardHandler), TracerProvider: provider})}
	const caller = "4bf92f3577b34da6a3ce929d0e0e4736"
	id := c.do("POST", "/activities", newCall, "traceparent", "00-"+caller+"-00f067aa0ba902b7-01").activity(t).ID

	ended := spans.Ended()
	if len(ended) != 2 {
		t.Fatalf("%d spans", len(ended))
	}
	appended, server := ended[0], ended[1]
	if server.Name() != "POST /activities" || server.SpanKind() != trace.SpanKindServer || server.SpanContext().TraceID().String() != caller {
		t.Errorf("server span %s, %v, trace %s", server.Name(), server.SpanKind(), server.SpanContext().TraceID())
	}
	if appended.SpanKind() != trace.SpanKindProducer || appended.Parent().SpanID() != server.SpanContext().SpanID() {
		t.Errorf("append span %s, %v, is not the server span's child", appended.Name(), appended.SpanKind())
	}
	if got, want := a.Events(id)[0].Headers["traceparent"], "00-"+caller+"-"+appended.SpanContext().SpanID().String()+"-01"; got != want {
		t.Errorf("the event's traceparent is %s, want %s", got, want)
	}
	has(t, server, attribute.String("http.request.method", "POST"), attribute.String("http.route", "/activities"), attribute.Int("http.response.status_code", 201))
}

// Promise: a refusal is no error of the server's; a failure is one.
func TestOnlyFailuresOfTheServerMarkItsSpan(t *testing.T) {
	t.Parallel()
	a := crmtest.New(t)
	spans := tracetest.NewSpanRecorder()
	c := client{t, httpapi.New(a.Service, httpapi.Options{Logger: slog.New(slog.DiscardHandler),
		TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))})}
	c.do("GET", "/activities/7", "")
	a.Exec("drop table crm.dashboard")
	c.do("GET", "/dashboard", "")
	ended := spans.Ended()
	if len(ended) != 2 || ended[0].Status().Code != codes.Unset || ended[1].Status().Code != codes.Error {
		t.Fatalf("%v", ended)
	}
	has(t, ended[0], attribute.String("http.route", "/activities/{id}"), attribute.Int("http.response.status_code", 404), attribute.String("error.type", "not_found"))
	has(t, ended[1], attribute.Int("http.response.status_code", 500))
}

func has(t *testing.T, span sdktrace.ReadOnlySpan, want ...attribute.KeyValue) {
	t.Helper()
	set := attribute.NewSet(span.Attributes()...)
	for _, kv := range want {
		if got, ok := set.Value(kv.Key); !ok || got != kv.Value {
			t.Errorf("span %s: %s is %v, want %v", span.Name(), kv.Key, got.String(), kv.Value.String())
		}
	}
}
