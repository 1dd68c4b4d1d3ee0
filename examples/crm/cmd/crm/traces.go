package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/keylinehq/keyline/cmd/keyline/telemetry"
)

// traces wires OpenTelemetry's SDK, which only programs do: libraries use its
// API. The exporter reads the standard OTEL_ variables. Without send, nothing is traced.
func traces(ctx context.Context, send bool) (end func(*slog.Logger), err error) {
	if !send {
		return func(*slog.Logger) {}, nil
	}
	exporter, err := otlptracegrpc.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("trace exporter: %w", err)
	}
	what, err := resource.New(ctx, resource.WithAttributes(semconv.ServiceName("crm")), resource.WithHost(), resource.WithProcessPID(), resource.WithFromEnv(), resource.WithTelemetrySDK())
	if err != nil {
		return nil, fmt.Errorf("trace resource: %w", err)
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(what),
		sdktrace.WithSampler(telemetry.SampleDeliveries(sdktrace.ParentBased(sdktrace.AlwaysSample()), telemetry.DefaultCatchUp)))
	otel.SetTracerProvider(provider)
	return func(log *slog.Logger) {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if err := provider.Shutdown(last); err != nil {
			log.Warn("the last traces were not sent", "error", err)
		}
	}, nil
}
