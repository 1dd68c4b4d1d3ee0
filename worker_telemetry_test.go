package keyline_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
)

func spanAttributes(s tracetest.SpanStub) map[string]string {
	m := map[string]string{}
	for _, a := range s.Attributes {
		m[string(a.Key)] = a.Value.String()
	}
	return m
}

func TestProcessSpanIsAChildOfTheAppendAndARetryANewRootWithALink(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	inHandler := make(chan trace.SpanContext, 10)
	startWorker(t, db, keyline.Config{TracerProvider: provider}, keyline.Consumer{Name: "c", Types: []string{"*"}, Effect: keyline.None(),
		Retry: quick(time.Millisecond),
		Handle: func(ctx context.Context, d *keyline.Delivery) error {
			inHandler <- trace.SpanContextFromContext(ctx)
			s.add(d)
			if d.Attempt == 1 {
				return errFails
			}
			return nil
		}})
	client, err := keyline.NewClient(keyline.ClientConfig{TracerProvider: provider})
	if err != nil {
		t.Fatal(err)
	}
	ctx, request := provider.Tracer("test").Start(t.Context(), "request")
	if _, err := client.Append(ctx, db.Pool(), keyline.NewEvent{Key: keyline.Key{Tenant: "acme", Record: "thing:1"}, Type: "thing.done",
		CorrelationID: "corr"}); err != nil {
		t.Fatal(err)
	}
	request.End()
	s.wait(t, 2)
	var process []tracetest.SpanStub
	testdb.Eventually(t, func() bool {
		process = nil
		for _, span := range spans.GetSpans() {
			if span.Name == "process c" {
				process = append(process, span)
			}
		}
		return len(process) == 2
	}, "two process spans end")
	var appended tracetest.SpanStub
	for _, span := range spans.GetSpans() {
		if span.SpanKind == trace.SpanKindProducer {
			appended = span
		}
	}
	first, retry := process[0], process[1]
	if first.SpanKind != trace.SpanKindConsumer || first.Parent.SpanID() != appended.SpanContext.SpanID() ||
		first.SpanContext.TraceID() != request.SpanContext().TraceID() {
		t.Errorf("first: kind %s, parent %s", first.SpanKind, first.Parent.SpanID())
	}
	if retry.Parent.IsValid() || retry.SpanContext.TraceID() == first.SpanContext.TraceID() {
		t.Error("a retry is not a new root")
	}
	for i, span := range process {
		if len(span.Links) != 1 || span.Links[0].SpanContext.SpanID() != appended.SpanContext.SpanID() {
			t.Errorf("span %d links to %+v", i, span.Links)
		}
		if got := <-inHandler; got.SpanID() != span.SpanContext.SpanID() {
			t.Errorf("the handler runs in span %s", got.SpanID())
		}
	}
	want := map[string]string{"messaging.system": "keyline", "messaging.operation.type": "process", "messaging.destination.name": "thing",
		"messaging.consumer.group.name": "c", "keyline.record.key": "thing:1", "keyline.event.seq": "1", "keyline.tenant": "acme",
		"messaging.message.conversation_id": "corr", "keyline.delivery.attempt": "1", "keyline.delivery.outcome": "retry", "error.type": "error"}
	got := spanAttributes(first)
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%s is %q, want %q", k, got[k], v)
		}
	}
	if got := spanAttributes(retry); got["keyline.delivery.attempt"] != "2" || got["keyline.delivery.outcome"] != "completed" {
		t.Errorf("retry: %v", got)
	}
	for _, span := range spans.GetSpans() {
		if span.Name != "process c" && span.SpanKind != trace.SpanKindProducer && span.Name != "request" {
			t.Errorf("span %q: polls have none", span.Name)
		}
	}
}

func TestMetricsCountDeliveriesClaimsAndWhatWaits(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	reader := sdkmetric.NewManualReader()
	w := startWorker(t, db, keyline.Config{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))},
		recording(s, "fine"),
		keyline.Consumer{Name: "parks", Types: []string{"*"}, Effect: keyline.None(), OnDead: keyline.Park, Retry: quick(time.Millisecond),
			Handle: func(_ context.Context, d *keyline.Delivery) error {
				s.add(d)
				if d.Attempt == 1 {
					return errFails
				}
				return keyline.Permanent(errFails)
			}},
		keyline.Consumer{Name: "snoozes", Types: []string{"*"}, Effect: keyline.None(),
			Handle: func(_ context.Context, d *keyline.Delivery) error {
				s.add(d)
				if !d.Redelivered {
					return keyline.Snooze(time.Millisecond)
				}
				return nil
			}})
	appendN(t, db, "thing:1", 3)
	s.wait(t, 11)
	settled(t, db)
	// The database knows before the record's actor has the answer to its flush.
	testdb.Eventually(t, func() bool { h := w.Health(); return h.Resident == 0 && h.Settled > 0 }, "the worker has heard that the record is settled")
	exec(t, db.Pool(), "update keyline.workers set consumers = '{fine}'") // as if this one did not run the others any more
	names := collect(t, reader)
	consumed := names["messaging.client.consumed.messages"].(metricdata.Sum[int64])
	counts := map[string]int64{}
	for _, p := range consumed.DataPoints {
		group, _ := p.Attributes.Value(attribute.Key("messaging.consumer.group.name"))
		outcome, _ := p.Attributes.Value(attribute.Key("keyline.delivery.outcome"))
		counts[group.AsString()+" "+outcome.AsString()] = p.Value
	}
	if counts["fine completed"] != 3 || counts["parks retry"] != 1 || counts["parks permanent"] != 1 ||
		counts["snoozes snoozed"] != 3 || counts["snoozes completed"] != 3 || len(counts) != 5 {
		t.Errorf("consumed: %v", counts)
	}
	value := func(name string) (sum float64) {
		switch data := names[name].(type) {
		case metricdata.Gauge[float64]:
			for _, p := range data.DataPoints {
				sum += p.Value
			}
		case metricdata.Sum[float64]:
			for _, p := range data.DataPoints {
				sum += p.Value
			}
		default:
			t.Errorf("%s is %T", name, data)
		}
		return sum
	}
	for name, want := range map[string]float64{"keyline.dead_letters.open": 1, "keyline.records.blocked": 1, "keyline.consumer.unhosted": 2, "keyline.worker.records": 0,
		"keyline.breaker.state": 0, "keyline.mailbox.oldest_age": 0, "keyline.flushes.fenced": 0, "keyline.claims.recovered": 0} {
		if got := value(name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	for _, name := range []string{"keyline.claims", "keyline.claims.records", "keyline.records.settled", "keyline.wakes"} {
		if value(name) < 1 {
			t.Errorf("%s is %v", name, value(name))
		}
	}
	for name, want := range map[string]map[string]uint64{
		"messaging.process.duration": {"fine completed": 3, "parks retry": 1, "parks permanent": 1, "snoozes snoozed": 3, "snoozes completed": 3},
		"keyline.delivery.lag":       {"fine ": 3, "parks ": 1, "snoozes ": 3}, // of first runs
	} {
		counts := map[string]uint64{}
		for _, p := range names[name].(metricdata.Histogram[float64]).DataPoints {
			group, _ := p.Attributes.Value(attribute.Key("messaging.consumer.group.name"))
			outcome, _ := p.Attributes.Value(attribute.Key("keyline.delivery.outcome"))
			counts[group.AsString()+" "+outcome.AsString()] = p.Count
			// Milliseconds are told apart, and the second of the service level.
			if !slices.Contains(p.Bounds, 0.005) || !slices.Contains(p.Bounds, 1) || p.Bounds[len(p.Bounds)-1] < 600 {
				t.Errorf("%s is counted by %v", name, p.Bounds)
			}
		}
		if !maps.Equal(counts, want) {
			t.Errorf("%s: %v, want %v", name, counts, want)
		}
	}
}

// Promise: docs/tracing.md has every metric that there is, and none that there is not.
func TestTheDocumentedMetricsAreThoseOfWorkersAndClients(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	reader := sdkmetric.NewManualReader()
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	startWorker(t, db, keyline.Config{MeterProvider: meters}, recording(s, "c"))
	client := newClient(t, keyline.ClientConfig{MeterProvider: meters})
	for _, e := range []keyline.NewEvent{{Type: "t"}, {Key: keyline.Key{Record: "r"}, Type: "t", IdempotencyKey: "k"}, {Key: keyline.Key{Record: "r"}, Type: "t", IdempotencyKey: "k"}} {
		must(client.Append(t.Context(), db.Pool(), e))(t)
	}
	s.wait(t, 2)
	settled(t, db)
	got := slices.Sorted(maps.Keys(collect(t, reader)))
	want, _ := documented(t, "Metrics")
	if !slices.Equal(got, want) {
		t.Errorf("documented:\n%v\nthere are:\n%v", want, got)
	}
}

// Promise: a database that hangs keeps back what it would have to say, and nothing else.
func TestMetricsComeThoughTheDatabaseHangs(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	reader := sdkmetric.NewManualReader()
	startWorker(t, db, keyline.Config{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))}, recording(newSeen(), "c"))
	tx := must(db.Connect().Begin(t.Context()))(t)
	exec(t, tx, "lock table keyline.mailboxes in access exclusive mode")
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err == nil {
		t.Error("it did not hang")
	}
	names := metricsByName(all)
	if names["keyline.worker.records"] == nil || names["keyline.claims"] == nil || names["keyline.mailbox.oldest_age"] != nil {
		t.Errorf("collected: %v", slices.Sorted(maps.Keys(names)))
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if collect(t, reader)["keyline.mailbox.oldest_age"] == nil {
		t.Error("it does not come back")
	}
}

// collect collects all metrics, again where a busy machine has kept the database's answer back.
func collect(t *testing.T, reader sdkmetric.Reader) map[string]metricdata.Aggregation {
	t.Helper()
	var all metricdata.ResourceMetrics
	testdb.Eventually(t, func() bool { return reader.Collect(t.Context(), &all) == nil }, "the database answers")
	return metricsByName(all)
}

func metricsByName(all metricdata.ResourceMetrics) map[string]metricdata.Aggregation {
	names := map[string]metricdata.Aggregation{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			names[m.Name] = m.Data
		}
	}
	return names
}

// statementSpans makes a span of each statement that runs inside one, as tracers of SQL do.
type statementSpans struct{ tracer trace.Tracer }

func (s statementSpans) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	if !trace.SpanFromContext(ctx).IsRecording() {
		return ctx
	}
	ctx, _ = s.tracer.Start(ctx, "sql", trace.WithAttributes(attribute.String("text", d.SQL)))
	return context.WithValue(ctx, statementSpans{}, true)
}

func (s statementSpans) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if ctx.Value(statementSpans{}) != nil {
		trace.SpanFromContext(ctx).End()
	}
}

func (statementSpans) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (s statementSpans) TraceBatchQuery(ctx context.Context, conn *pgx.Conn, d pgx.TraceBatchQueryData) {
	s.TraceQueryEnd(s.TraceQueryStart(ctx, conn, pgx.TraceQueryStartData{SQL: d.SQL}), conn, pgx.TraceQueryEndData{})
}

func (statementSpans) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// Promise: with a tracer of SQL on the worker's pool, a delivery's statements are in its span, HandleTx's transaction
// included, and what the worker does in the background is in none, even where it was started inside one.
func TestStatementsOfADeliveryAreInItsSpanAndPollsInNone(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	tracer := provider.Tracer("test")
	pool := db.NewPool(func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = statementSpans{tracer} })
	w, err := keyline.NewWorker(pool, keyline.Config{TracerProvider: provider}, keyline.Consumer{Name: "c", Types: []string{"*"}, Effect: keyline.Database(),
		HandleTx: func(ctx context.Context, tx pgx.Tx, d *keyline.Delivery) error {
			defer s.add(d)
			_, err := tx.Exec(ctx, "select 'of the handler'")
			return err
		}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, start := tracer.Start(t.Context(), "start")
	if err := w.Start(ctx); err != nil {
		t.Fatal(err)
	}
	start.End()
	appendN(t, db, "thing:1", 3)
	s.wait(t, 3)
	settled(t, db)
	if _, err := w.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	process := map[trace.SpanID]string{}
	for _, span := range spans.GetSpans() {
		if span.Name == "process c" {
			process[span.SpanContext.SpanID()] = ""
		}
	}
	for _, span := range spans.GetSpans() {
		if span.Name != "sql" {
			continue
		}
		if _, ok := process[span.Parent.SpanID()]; !ok {
			t.Errorf("in no delivery's span: %s", spanAttributes(span)["text"])
		}
		text, _, _ := strings.Cut(spanAttributes(span)["text"], " ")
		process[span.Parent.SpanID()] += text + " "
	}
	if len(process) != 3 {
		t.Errorf("%d deliveries", len(process))
	}
	for _, statements := range process {
		if !strings.HasPrefix(statements, "begin select ") || !strings.HasSuffix(statements, "commit ") {
			t.Errorf("statements of a delivery: %s", statements)
		}
	}
}
