package httpapi

import (
	"net/http"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

// handler is an http.HandlerFunc that may fail before it has written anything.
type handler func(http.ResponseWriter, *http.Request) error

// traced runs a handler in a span of its own, which continues the caller's
// trace. The append that happens in it is its child, and so are the deliveries.
func (a *api) traced(route string, handle handler) http.Handler {
	method, path, _ := strings.Cut(route, " ")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		ctx, span := a.tracer.Start(ctx, route, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(
			semconv.HTTPRequestMethodKey.String(method), semconv.HTTPRoute(path), semconv.URLPath(r.URL.Path)))
		defer span.End()
		if id := r.Header.Get(HeaderCorrelationID); id != "" {
			span.SetAttributes(attribute.String("crm.correlation_id", id))
		}
		status := &statusWriter{ResponseWriter: w, status: http.StatusOK}
		if err := handle(status, r.WithContext(ctx)); err != nil {
			p := problemOf(err)
			if p.Status >= http.StatusInternalServerError {
				a.log.ErrorContext(ctx, "request failed", "route", route, "status", p.Status, "error", err)
				span.SetStatus(codes.Error, p.Code)
			}
			span.SetAttributes(semconv.ErrorTypeKey.String(p.Code))
			p.write(status)
		}
		span.SetAttributes(semconv.HTTPResponseStatusCode(status.status))
	})
}

// statusWriter remembers the status.
type statusWriter struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter.
func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap serves http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
