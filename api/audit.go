package api

import (
	"context"
	"net/http"

	"github.com/keylinehq/keyline"
)

func (h *Handler) registerAudit() {
	pages(h, operation{
		id: "listAudit", method: http.MethodGet, path: "/v1/audit", tag: "audit", role: keyline.RoleViewer, scope: scopeRecords,
		summary: "Who did what, and why, the newest first", detail: "For one tenant's token: acts on its records, and those that were about the tenant. " +
			"For a viewer: without acts on events of internal types, and on events that have been pruned since, of which nobody knows the type any more.",
	}, func(ctx context.Context, s *session, in *struct {
		Actor  string `query:"actor" maxLength:"300" doc:"Only this actor's."`
		Action string `query:"action" maxLength:"300" doc:"Only this action, such as retry_dead_letter."`
		Paging
	}, below int64, limit int) ([]keyline.AuditEntry, error) {
		return s.Audit(ctx, keyline.AuditFilter{Actor: in.Actor, Action: in.Action, Below: below, Limit: limit})
	}, func(e keyline.AuditEntry) int64 { return e.ID })
}
