package api

import (
	"context"
	"net/http"

	"github.com/keylinehq/keyline"
)

func (h *Handler) registerAudit() {
	add(h, operation{
		id: "listAudit", method: http.MethodGet, path: "/v1/audit", tag: "audit", role: keyline.RoleViewer, scope: scopeRecords,
		summary: "Who did what, and why, the newest first", detail: "For one tenant's token: acts on its records, and those that were about the tenant.",
	}, func(ctx context.Context, s *session, in *struct {
		Actor  string `query:"actor" maxLength:"300" doc:"Only this actor's."`
		Action string `query:"action" maxLength:"300" doc:"Only this action, such as retry_dead_letter."`
		Paging
	}) (*answer[Page[keyline.AuditEntry]], error) {
		f := keyline.AuditFilter{Actor: in.Actor, Action: in.Action, Limit: in.Limit + 1}
		if err := in.decode(&f.Below); err != nil {
			return nil, err
		}
		list, err := s.Audit(ctx, f)
		if err != nil {
			return nil, err
		}
		return page(list, in.Limit, func(e keyline.AuditEntry) any { return e.ID })
	})
}
