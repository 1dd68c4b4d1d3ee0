package api

import (
	"context"
	"net/http"

	"github.com/google/uuid"

	"github.com/keylinehq/keyline"
)

// NameParam names a consumer.
type NameParam struct {
	Name string `path:"name" maxLength:"300" doc:"The consumer's name."`
}

// statusBody is a consumer's new status.
type statusBody struct {
	Consumer string `json:"consumer"`
	Status   string `json:"status"`
}

func (h *Handler) registerConsumers() {
	const tag = "consumers"
	whole(h, operation{
		id: "listConsumers", method: http.MethodGet, path: "/v1/consumers", tag: tag, role: keyline.RoleViewer, scope: scopeInstallation,
		summary: "The map of consumers: what each gets, what it changes, who runs it",
	}, func(ctx context.Context, s *session, _ *none) ([]keyline.ConsumerView, error) {
		return s.Consumers(ctx)
	})
	add(h, operation{
		id: "getConsumer", method: http.MethodGet, path: "/v1/consumers/{name}", tag: tag, role: keyline.RoleViewer, scope: scopeInstallation,
		summary: "A consumer, who runs it and how it fares",
	}, func(ctx context.Context, s *session, in *NameParam) (*answer[keyline.ConsumerView], error) {
		return answered(s.InspectConsumer(ctx, in.Name))
	})
	const behind = "listBehind"
	add(h, operation{
		id: behind, method: http.MethodGet, path: "/v1/consumers/{name}/behind", tag: tag, role: keyline.RoleViewer, scope: scopeRecords,
		summary: "The records that a consumer is behind on, each with the reason", detail: "A page can be short, or empty, and not be the last.",
	}, func(ctx context.Context, s *session, in *struct {
		NameParam
		TenantParam
		Paging
	}) (*answer[Page[keyline.BehindRecord]], error) {
		f := keyline.BehindFilter{Tenant: in.filter(), Limit: in.Limit}
		if err := decode(in.Paging, behind, &f.After); err != nil {
			return nil, err
		}
		p, err := s.Behind(ctx, in.Name, f)
		out := Page[keyline.BehindRecord]{Items: p.Records}
		if p.Next != 0 {
			out.Next = cursor(behind, p.Next)
		}
		return answered(out, err)
	})
	for _, act := range []struct {
		verb, becomes, summary string
		do                     func(keyline.Operator, context.Context, string, string) error
	}{
		{"pause", "paused", "Stop a consumer's deliveries; it keeps its place", keyline.Operator.PauseConsumer},
		{"resume", "active", "Make a paused or disabled consumer active again", keyline.Operator.ResumeConsumer},
		{"disable", "disabled", "Let events pass a consumer as ignored; it loses its place", keyline.Operator.DisableConsumer},
		{"retire", "retired", "End a consumer for ever", keyline.Operator.RetireConsumer},
	} {
		add(h, operation{
			id: act.verb + "Consumer", method: http.MethodPost, path: "/v1/consumers/{name}/" + act.verb, tag: tag,
			role: keyline.RoleOperator, scope: scopeInstallation, summary: act.summary, detail: "It holds when the answer comes.",
		}, func(ctx context.Context, s *session, in *struct {
			NameParam
			Body WithReason
		}) (*answer[statusBody], error) {
			return answered(statusBody{in.Name, act.becomes}, act.do(s.Operator, ctx, in.Name, in.Body.Reason))
		})
	}
	add(h, operation{
		id: "retryConsumer", method: http.MethodPost, path: "/v1/consumers/{name}/retry", tag: tag, role: keyline.RoleOperator, scope: scopeRecords,
		summary: "Run one consumer's failed delivery of an event again now", detail: actDetail, accepted: true,
	}, func(ctx context.Context, s *session, in *struct {
		NameParam
		Body struct {
			ActBody
			Event uuid.UUID `json:"event" format:"uuid" doc:"The event's id."`
		}
	}) (*acted, error) {
		return one(ctx, in.Body.ActBody, func(ctx context.Context) (keyline.Act, error) {
			return s.RetryConsumer(ctx, in.Body.Event, in.Name, in.Body.Reason)
		})
	})
}
