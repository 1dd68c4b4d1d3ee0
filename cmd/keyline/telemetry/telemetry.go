package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	noopmetric "go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	nooptrace "go.opentelemetry.io/otel/trace/noop"

	"github.com/keylinehq/keyline/internal/clock"
)

// Options say what a program exports. Where traces and metrics are pushed to is
// in the environment, by the names of the OpenTelemetry specification:
// OTEL_EXPORTER_OTLP_ENDPOINT (or …_TRACES_ENDPOINT, …_METRICS_ENDPOINT),
// OTEL_EXPORTER_OTLP_PROTOCOL (http/protobuf, the default, or grpc),
// OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG, and OTEL_SDK_DISABLED.
type Options struct {
	// Prometheus makes a handler from which Prometheus may fetch metrics.
	Prometheus bool
	// CatchUp is the share of catch-up deliveries that are traced, from 0 to 1 (SampleDeliveries).
	CatchUp float64
	// Version is the program's.
	Version string
	Logger  *slog.Logger
}

// Telemetry is what was set up. A provider for which there is nothing to export
// is a noop: with it the library leaves out the work of making spans.
type Telemetry struct {
	TracerProvider trace.TracerProvider
	MeterProvider  metric.MeterProvider
	// Metrics lets Prometheus fetch metrics; nil where that was not asked for.
	Metrics http.Handler

	shutdown []func(context.Context) error // in the order of their making
}

// Setup makes what the options and the environment ask for.
func Setup(ctx context.Context, o Options) (*Telemetry, error) {
	t := &Telemetry{TracerProvider: nooptrace.NewTracerProvider(), MeterProvider: noopmetric.NewMeterProvider()}
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") && !o.Prometheus {
		return t, nil
	}
	if o.Logger != nil {
		// The default handler writes past every logger.
		otel.SetErrorHandler(&complaints{log: o.Logger, clock: clock.Real()})
	}
	res, err := resource.New(ctx,
		resource.WithTelemetrySDK(), resource.WithHost(), resource.WithProcessPID(),
		resource.WithAttributes(attribute.String("service.name", "keyline"), attribute.String("service.version", o.Version)),
		resource.WithFromEnv())
	switch {
	case errors.Is(err, resource.ErrPartialResource) && res != nil:
		// What is known of the process goes with what is sent, and no event waits for the rest.
		otel.Handle(fmt.Errorf("describe this process: %w", err))
	case err != nil:
		return nil, fmt.Errorf("describe this process: %w", err)
	}
	if err := errors.Join(t.traces(ctx, res, o.CatchUp), t.metrics(ctx, res, o)); err != nil {
		return nil, errors.Join(err, t.Shutdown(context.WithoutCancel(ctx)))
	}
	return t, nil
}

// wanted says whether a signal ("TRACES", "METRICS") is to be pushed, and by which protocol.
func wanted(signal string) (protocol string, ok bool) {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") {
		return "", false
	}
	if first("OTEL_EXPORTER_OTLP_"+signal+"_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT") == "" {
		return "", false
	}
	protocol = first("OTEL_EXPORTER_OTLP_"+signal+"_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
	if protocol == "" {
		protocol = "http/protobuf"
	}
	return protocol, true
}

func first(names ...string) string {
	for _, n := range names {
		if v := os.Getenv(n); v != "" {
			return v
		}
	}
	return ""
}

func unknownProtocol(protocol string) error {
	return fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL %q: must be http/protobuf or grpc", protocol)
}

func (t *Telemetry) traces(ctx context.Context, res *resource.Resource, catchUp float64) error {
	protocol, ok := wanted("TRACES")
	if !ok {
		return nil
	}
	sample, err := sampler(catchUp)
	if err != nil {
		return err
	}
	var exporter sdktrace.SpanExporter
	switch protocol {
	case "http/protobuf":
		exporter, err = otlptracehttp.New(ctx)
	case "grpc":
		exporter, err = otlptracegrpc.New(ctx)
	default:
		err = unknownProtocol(protocol)
	}
	if err != nil {
		return fmt.Errorf("export traces: %w", err)
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithSampler(sample), sdktrace.WithResource(res))
	t.TracerProvider = provider
	t.shutdown = append(t.shutdown, provider.Shutdown)
	return nil
}

func (t *Telemetry) metrics(ctx context.Context, res *resource.Resource, o Options) error {
	options := []sdkmetric.Option{sdkmetric.WithResource(res)}
	if protocol, ok := wanted("METRICS"); ok {
		var (
			exporter sdkmetric.Exporter
			err      error
		)
		switch protocol {
		case "http/protobuf":
			exporter, err = otlpmetrichttp.New(ctx)
		case "grpc":
			exporter, err = otlpmetricgrpc.New(ctx)
		default:
			err = unknownProtocol(protocol)
		}
		if err != nil {
			return fmt.Errorf("export metrics: %w", err)
		}
		options = append(options, sdkmetric.WithReader(sdkmetric.NewPeriodicReader(exporter)))
	}
	if o.Prometheus {
		registry := prometheus.NewRegistry()
		reader, err := otelprometheus.New(otelprometheus.WithRegisterer(registry))
		if err != nil {
			return fmt.Errorf("serve metrics: %w", err)
		}
		// A collection asks the database what waits: a few at a time are enough.
		t.Metrics = promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: collectTimeout})
		options = append(options, sdkmetric.WithReader(reader))
	}
	if len(options) == 1 {
		return nil
	}
	provider := sdkmetric.NewMeterProvider(options...)
	t.MeterProvider = provider
	t.shutdown = append(t.shutdown, provider.Shutdown)
	return nil
}

// collectTimeout bounds the answer to a scrape.
const collectTimeout = 10 * time.Second

// Shutdown sends what has gathered and ends the exporters.
func (t *Telemetry) Shutdown(ctx context.Context) error {
	var err error
	for i := len(t.shutdown) - 1; i >= 0; i-- {
		err = errors.Join(err, t.shutdown[i](ctx))
	}
	t.shutdown = nil
	return err
}
