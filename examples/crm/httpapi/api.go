// Package httpapi is the application's HTTP API. Its handlers are thin: they
// read a request, call the service, and write its answer. What consumers do with the
// events shows in none of the answers.
//
// Every request names its tenant (X-Organization) and its user (X-Actor); here
// they are believed, in a real program they come out of the authentication.
// A change may carry Idempotency-Key, to be sent again safely, and If-Match with
// the ETag that the client has seen. X-Correlation-ID and X-Request-ID go into the
// event, as correlation and causation.
package httpapi

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"

	"github.com/keylinehq/keyline/examples/crm/crm"
)

// Options are what the API gets from its program.
type Options struct {
	// Logger defaults to slog.Default().
	Logger *slog.Logger
	// TracerProvider makes the requests' spans. Default: OpenTelemetry's global one.
	TracerProvider trace.TracerProvider
}

type api struct {
	service *crm.Service
	log     *slog.Logger
	tracer  trace.Tracer
}

// New makes the API's handler.
func New(service *crm.Service, o Options) http.Handler {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.TracerProvider == nil {
		o.TracerProvider = otel.GetTracerProvider()
	}
	a := &api{service: service, log: o.Logger, tracer: o.TracerProvider.Tracer("github.com/keylinehq/keyline/examples/crm/httpapi")}
	mux := http.NewServeMux()
	for route, handle := range a.routes() {
		mux.Handle(route, a.traced(route, handle))
	}
	return mux
}

func (a *api) routes() map[string]handler {
	s := a.service
	return map[string]handler{
		"POST /activities":                 a.create,
		"GET /activities/{id}":             a.get,
		"PATCH /activities/{id}":           change(s.Update),
		"DELETE /activities/{id}":          a.delete,
		"POST /activities/{id}/assign":     change(with(s.Assign, func(b ownerBody) string { return b.Owner })),
		"POST /activities/{id}/reassign":   change(with(s.Reassign, func(b ownerBody) string { return b.Owner })),
		"POST /activities/{id}/start":      change(without(s.Start)),
		"POST /activities/{id}/reschedule": change(s.Reschedule),
		"POST /activities/{id}/complete":   change(with(s.Complete, func(b outcomeBody) string { return b.Outcome })),
		"POST /activities/{id}/cancel":     change(with(s.Cancel, func(b reasonBody) string { return b.Reason })),
		"POST /activities/{id}/notes":      change(with(s.AddNote, func(b noteBody) string { return b.Body })),
		"GET /activities/{id}/timeline":    a.timeline,
		"GET /calendar":                    a.calendar,
		"GET /dashboard":                   a.dashboard,
	}
}

// The bodies of the operations that take one value.
type (
	ownerBody struct {
		Owner string `json:"owner"`
	}
	outcomeBody struct {
		Outcome string `json:"outcome"`
	}
	reasonBody struct {
		Reason string `json:"reason"`
	}
	noteBody struct {
		Body string `json:"body"`
	}
	noBody struct{}
)

// operation is a service method on one activity.
type operation[B any] func(ctx context.Context, r crm.Request, id uuid.UUID, body B) (crm.Activity, error)

// with adapts a method that takes one value to the body that the value comes in.
func with[B any](f func(context.Context, crm.Request, uuid.UUID, string) (crm.Activity, error), value func(B) string) operation[B] {
	return func(ctx context.Context, r crm.Request, id uuid.UUID, body B) (crm.Activity, error) {
		return f(ctx, r, id, value(body))
	}
}

// without adapts a method that takes nothing.
func without(f func(context.Context, crm.Request, uuid.UUID) (crm.Activity, error)) operation[noBody] {
	return func(ctx context.Context, r crm.Request, id uuid.UUID, _ noBody) (crm.Activity, error) {
		return f(ctx, r, id)
	}
}

// change is the handler of an operation on one activity.
func change[B any](f operation[B]) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		request, err := requestOf(r)
		if err != nil {
			return err
		}
		id, err := idOf(r)
		if err != nil {
			return err
		}
		var body B
		if err := read(w, r, &body); err != nil {
			return err
		}
		activity, err := f(r.Context(), request, id, body)
		if err != nil {
			return err
		}
		return write(w, http.StatusOK, activity)
	}
}

func (a *api) create(w http.ResponseWriter, r *http.Request) error {
	request, err := requestOf(r)
	if err != nil {
		return err
	}
	var body crm.NewActivity
	if err := read(w, r, &body); err != nil {
		return err
	}
	activity, err := a.service.Create(r.Context(), request, body)
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/activities/"+activity.ID.String())
	return write(w, http.StatusCreated, activity)
}

func (a *api) delete(w http.ResponseWriter, r *http.Request) error {
	request, err := requestOf(r)
	if err != nil {
		return err
	}
	id, err := idOf(r)
	if err != nil {
		return err
	}
	if _, err := a.service.Delete(r.Context(), request, id); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
