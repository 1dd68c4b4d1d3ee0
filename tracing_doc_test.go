package keyline_test

import (
	"context"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
)

// documented are the first columns of the table in a section of docs/tracing.md, and the whole section.
func documented(t *testing.T, section string) (names []string, text string) {
	t.Helper()
	doc, err := os.ReadFile("docs/tracing.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(doc), "\n## "+section+"\n")
	if !found {
		t.Fatalf("docs/tracing.md has no section %q", section)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_.]+)` \\|").FindAllStringSubmatch(text, -1) {
		names = append(names, m[1])
	}
	slices.Sort(names)
	return names, text
}

// Promise: docs/tracing.md has every attribute that a span has, and none that none has; so with outcomes and modes.
func TestTheDocumentedAttributesAreThoseOfTheSpans(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	client := newClient(t, keyline.ClientConfig{TracerProvider: provider})
	event := keyline.NewEvent{Key: keyline.Key{Tenant: "acme", Record: "thing:1"}, Type: "thing.done", CorrelationID: "corr"}
	must(client.AppendMany(t.Context(), db.Pool(), []keyline.NewEvent{event, event}))(t)
	must(client.Append(t.Context(), db.Pool(), event))(t)
	event.ExpectedSeq = ptr(int64(99))
	_, err := client.Append(t.Context(), db.Pool(), event)
	wantError(t, err, keyline.ErrConflict, keyline.CodeWrongExpectedSeq)

	worker := must(keyline.NewWorker(db.Pool(), keyline.Config{TracerProvider: provider}, keyline.Consumer{
		Name: "batches", Types: []string{"*"}, Effect: keyline.None(), Start: keyline.Beginning(),
		HandleBatch: func(context.Context, []*keyline.Delivery) error { return nil },
	}, keyline.Consumer{
		Name: "fails", Types: []string{"*"}, Effect: keyline.None(), Start: keyline.Beginning(), Retry: quick(time.Millisecond),
		Handle: func(_ context.Context, d *keyline.Delivery) error {
			if d.Attempt == 1 {
				return errFails
			}
			return nil
		},
	}))(t)
	must(worker.Drain(t.Context(), keyline.DrainOptions{Within: time.Minute}))(t)

	seen := map[trace.SpanKind]map[string]bool{trace.SpanKindProducer: {}, trace.SpanKindConsumer: {}}
	for _, s := range spans.GetSpans() {
		for name := range spanAttributes(s) {
			if seen[s.SpanKind] == nil {
				t.Fatalf("span %q of kind %s", s.Name, s.SpanKind)
			}
			seen[s.SpanKind][name] = true
		}
	}
	for section, kind := range map[string]trace.SpanKind{"The append span": trace.SpanKindProducer, "The process span": trace.SpanKindConsumer} {
		names, _ := documented(t, section)
		if diff := cmp.Diff(names, slices.Sorted(maps.Keys(seen[kind]))); diff != "" {
			t.Errorf("%s: documented (-), in spans (+)\n%s", section, diff)
		}
	}
	_, text := documented(t, "The process span")
	for _, word := range append(slices.Clone(keyline.OutcomeNames()), string(keyline.Live), string(keyline.CatchUp), string(keyline.Replay)) {
		if !strings.Contains(text, "`"+word+"`") {
			t.Errorf("the process span's section does not know %q", word)
		}
	}
}
