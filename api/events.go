package api

import (
	"context"
	"net/http"

	"github.com/google/uuid"

	"github.com/keylinehq/keyline"
)

// EventParam names an event.
type EventParam struct {
	ID uuid.UUID `path:"id" format:"uuid" doc:"The event's id."`
}

func (h *Handler) registerEvents() {
	const tag = "events"
	add(h, operation{
		id: "getEvent", method: http.MethodGet, path: "/v1/events/{id}", tag: tag, role: keyline.RoleViewer, scope: scopeRecords,
		summary: "An event, and the state of each delivery", detail: "Without its payload. An event of an internal type is not found by a viewer.",
	}, func(ctx context.Context, s *session, in *EventParam) (*answer[keyline.EventView], error) {
		return answered(s.InspectEvent(ctx, in.ID))
	})
	add(h, operation{
		id: "traceEvent", method: http.MethodGet, path: "/v1/events/{id}/trace", tag: tag, role: keyline.RoleViewer, scope: scopeRecords,
		summary: "How an event went: its trace, and each consumer's runs, dead letter and acts",
	}, func(ctx context.Context, s *session, in *EventParam) (*answer[keyline.EventTrace], error) {
		return answered(s.TraceEvent(ctx, in.ID))
	})
	add(h, operation{
		id: "readPayload", method: http.MethodPost, path: "/v1/events/{id}/payload", tag: tag, role: keyline.RoleOperator, scope: scopeRecords,
		summary: "An event's payload, redacted", detail: "Reading one is an act: it takes a reason and is in the audit. One that is longer than the server shows is omitted.",
	}, func(ctx context.Context, s *session, in *struct {
		EventParam
		Body WithReason
	}) (*answer[keyline.EventPayload], error) {
		return answered(s.Payload(ctx, in.ID, in.Body.Reason))
	})
	add(h, operation{
		id: "retryEvent", method: http.MethodPost, path: "/v1/events/{id}/retry", tag: tag, role: keyline.RoleOperator, scope: scopeRecords,
		summary: "Run an event's failed deliveries again now, of every consumer", detail: actDetail, accepted: true,
	}, func(ctx context.Context, s *session, in *struct {
		EventParam
		Body ActBody
	}) (*acted, error) {
		return many(ctx, in.Body, func(ctx context.Context) ([]keyline.Act, error) { return s.RetryEvent(ctx, in.ID, in.Body.Reason) })
	})
}
