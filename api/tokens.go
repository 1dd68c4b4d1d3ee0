package api

import (
	"context"
	"net/http"
	"time"

	"github.com/keylinehq/keyline"
)

// tokenBody is a token to be made.
type tokenBody struct {
	WithReason
	Name   string  `json:"name" minLength:"1" maxLength:"100" doc:"Who acts, as the audit names them. A name is given once."`
	Role   string  `json:"role" enum:"viewer,operator,admin"`
	Tenant *string `json:"tenant,omitempty" maxLength:"512" doc:"The one tenant that it is for; left out: all, or that of the token that makes it."`
	Days   int     `json:"expires_in_days,omitempty" minimum:"1" maximum:"3650" default:"90" doc:"How long it lasts."`
}

func (h *Handler) registerTokens() {
	const tag = "tokens"
	pages(h, operation{
		id: "listTokens", method: http.MethodGet, path: "/v1/tokens", tag: tag, role: keyline.RoleAdmin, scope: scopeRecords,
		summary: "The tokens of this API, the newest first", detail: "Without their secrets, which nobody has. One tenant's admin sees that tenant's.",
	}, func(ctx context.Context, s *session, _ *Paging, below int64, limit int) ([]keyline.Token, error) {
		return s.Tokens(ctx, keyline.TokenFilter{Below: below, Limit: limit})
	}, func(t keyline.Token) int64 { return t.ID })
	add(h, operation{
		id: "createToken", method: http.MethodPost, path: "/v1/tokens", tag: tag, role: keyline.RoleAdmin, scope: scopeRecords,
		summary: "Make a token", detail: "Its secret is in this answer and nowhere else.",
	}, func(ctx context.Context, s *session, in *struct{ Body tokenBody }) (*answer[keyline.IssuedToken], error) {
		return answered(s.CreateToken(ctx, keyline.NewToken{Name: in.Body.Name, Role: keyline.Role(in.Body.Role), Tenant: in.Body.Tenant,
			ExpiresIn: time.Duration(in.Body.Days) * day}, in.Body.Reason))
	})
	add(h, operation{
		id: "revokeToken", method: http.MethodPost, path: "/v1/tokens/{id}/revoke", tag: tag, role: keyline.RoleAdmin, scope: scopeRecords,
		summary: "End a token", detail: "From then on nobody comes in with it; streams that it opened end at their next look.",
	}, func(ctx context.Context, s *session, in *struct {
		ID   int64 `path:"id" minimum:"1" doc:"The token's number."`
		Body WithReason
	}) (*answer[keyline.Token], error) {
		return answered(s.RevokeToken(ctx, in.ID, in.Body.Reason))
	})
}
