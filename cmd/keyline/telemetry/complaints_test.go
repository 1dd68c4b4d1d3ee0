package telemetry

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel"

	"github.com/keylinehq/keyline/internal/clock"
)

// Promise: an endpoint that takes nothing is said so, and floods no log, however much there is to be sent.
func TestAnEndpointThatTakesNothingFloodsNoLog(t *testing.T) {
	quiet(t)
	var out bytes.Buffer
	shutdown(t, setup(t, Options{Logger: slog.New(slog.NewTextHandler(&out, nil)), Prometheus: true}))
	for range 1000 {
		otel.Handle(errors.New("refused"))
	}
	if n := strings.Count(out.String(), "refused"); n != 1 {
		t.Errorf("%d lines: %.1000s", n, out.String())
	}
	out.Reset()
	fake := clock.NewFake(time.Unix(1e9, 0))
	c := &complaints{log: slog.New(slog.NewTextHandler(&out, nil)), clock: fake}
	for range 3 {
		c.Handle(errors.New("refused"))
		c.Handle(errors.New("refused again"))
		fake.Advance(complainEvery)
	}
	if s := out.String(); strings.Count(s, "error=refused unsaid=") != 3 || strings.Contains(s, "again") || strings.Count(s, "unsaid=1") != 2 {
		t.Errorf("said %s", s)
	}
}

// Promise: a process that cannot be described in full is described as far as it can be, says so, and starts.
func TestAProcessThatCannotBeDescribedInFullStarts(t *testing.T) {
	quiet(t)
	collected := newCollector(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collected.URL)
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "team=crm,garbage")
	var out bytes.Buffer
	tel := setup(t, Options{Logger: slog.New(slog.NewTextHandler(&out, nil)), Version: "v9"})
	produce(t, tel)
	shutdown(t, tel)
	if !strings.Contains(out.String(), "garbage") || !strings.Contains(collected.body("/v1/traces"), "v9") {
		t.Errorf("said %q, and sent %d bytes", out.String(), len(collected.body("/v1/traces")))
	}
}
