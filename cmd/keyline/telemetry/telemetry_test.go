package telemetry

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// quiet clears what the machine's environment says about telemetry.
func quiet(t *testing.T) {
	t.Helper()
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "OTEL_") {
			t.Setenv(name, "")
		}
	}
}

// collector takes what is pushed to it, by path.
type collector struct {
	*httptest.Server
	mu  sync.Mutex
	got map[string]string
}

func newCollector(t *testing.T) *collector {
	c := &collector{got: map[string]string{}}
	c.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.got[r.URL.Path] += string(body)
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *collector) body(path string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.got[path]
}

func setup(t *testing.T, o Options) *Telemetry {
	t.Helper()
	tel, err := Setup(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return tel
}

func shutdown(t *testing.T, tel *Telemetry) {
	t.Helper()
	if err := tel.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// produce makes a span and a measurement.
func produce(t *testing.T, tel *Telemetry) {
	t.Helper()
	_, span := tel.TracerProvider.Tracer("test").Start(t.Context(), "a span to be seen")
	span.End()
	counter, err := tel.MeterProvider.Meter("test").Int64Counter("counted.things")
	if err != nil {
		t.Fatal(err)
	}
	counter.Add(t.Context(), 3)
}

func TestNothingIsExportedUnlessTheEnvironmentSaysWhere(t *testing.T) {
	quiet(t)
	tel := setup(t, Options{})
	if _, ok := tel.TracerProvider.(noop.TracerProvider); !ok {
		t.Errorf("the tracer provider is a %T", tel.TracerProvider)
	}
	produce(t, tel)
	shutdown(t, tel)
}

func TestTracesAndMetricsAreSentByTheTimeOfShutdown(t *testing.T) {
	quiet(t)
	c := newCollector(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.URL)
	t.Setenv("OTEL_SERVICE_NAME", "named-by-the-environment")
	tel := setup(t, Options{Version: "v9"})
	produce(t, tel)
	shutdown(t, tel)
	for path, want := range map[string]string{"/v1/traces": "a span to be seen", "/v1/metrics": "counted.things"} {
		for _, w := range []string{want, "named-by-the-environment", "v9"} {
			if !strings.Contains(c.body(path), w) {
				t.Errorf("what came to %s lacks %q", path, w)
			}
		}
	}
}

func TestOneSignalAlone(t *testing.T) {
	quiet(t)
	c := newCollector(t)
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", c.URL+"/elsewhere")
	tel := setup(t, Options{})
	produce(t, tel)
	shutdown(t, tel)
	if c.body("/elsewhere") == "" || c.body("/v1/metrics") != "" {
		t.Errorf("traces: %d bytes, metrics: %d bytes", len(c.body("/elsewhere")), len(c.body("/v1/metrics")))
	}
}

func TestDisabledMeansNothing(t *testing.T) {
	quiet(t)
	c := newCollector(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.URL)
	t.Setenv("OTEL_SDK_DISABLED", "true")
	tel := setup(t, Options{})
	produce(t, tel)
	shutdown(t, tel)
	if len(c.got) > 0 {
		t.Errorf("sent all the same: %v", c.got)
	}
}

func TestUnknownProtocolIsRefused(t *testing.T) {
	quiet(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "carrier-pigeon")
	if _, err := Setup(t.Context(), Options{}); err == nil || !strings.Contains(err.Error(), "carrier-pigeon") {
		t.Errorf("got %v", err)
	}
}

func TestPrometheusFetchesMetrics(t *testing.T) {
	quiet(t)
	if tel := setup(t, Options{}); tel.Metrics != nil {
		t.Error("there is a handler that nobody asked for")
	}
	tel := setup(t, Options{Prometheus: true})
	produce(t, tel)
	answer := httptest.NewRecorder()
	tel.Metrics.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if body := answer.Body.String(); answer.Code != http.StatusOK || !strings.Contains(body, "counted_things_total") {
		t.Errorf("%d: no counter in\n%s", answer.Code, body)
	}
	shutdown(t, tel)
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(error) {}))
}
