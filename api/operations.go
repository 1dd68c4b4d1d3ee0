package api

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"github.com/keylinehq/keyline"
)

// securityScheme is the name of the one way to be let in; scopeExtension says in the description whether an
// operation is about records, of which a tenant's token sees its tenant's, or about the installation, of which it sees nothing.
const (
	securityScheme = "token"
	scopeExtension = "x-keyline-scope"
)

// The scopes.
const (
	scopeRecords      = "records"
	scopeInstallation = "installation"
)

// operation is what the description says of an operation.
type operation struct {
	id, method, path string
	summary, detail  string
	tag              string
	role             keyline.Role
	scope            string
	// accepted is true where it may also answer 202: given, and not applied yet.
	accepted    bool
	middlewares huma.Middlewares
}

// rank orders the roles: each may what those below it may.
func rank(r keyline.Role) int {
	switch r {
	case keyline.RoleAdmin:
		return 3
	case keyline.RoleOperator:
		return 2
	case keyline.RoleViewer:
		return 1
	}
	return 0
}

// describe is the operation for huma, guarded.
func (h *Handler) describe(op operation) huma.Operation {
	guard := func(ctx huma.Context, next func(huma.Context)) {
		s := sessionOf(ctx.Context())
		var p *Problem
		switch {
		case s == nil:
			p = asProblem(&keyline.Error{Code: keyline.CodeUnauthenticated})
		case rank(keyline.Role(s.token.Role)) < rank(op.role):
			p = problem(http.StatusForbidden, keyline.CodePermissionDenied, "the role "+s.token.Role+" may not do that: it takes "+string(op.role))
		case op.scope == scopeInstallation && s.token.Tenant != nil:
			p = problem(http.StatusForbidden, keyline.CodePermissionDenied, "this concerns all tenants, and the token is one tenant's")
		default:
			next(ctx)
			return
		}
		h.refuse(ctx, p)
	}
	problems := h.api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[Problem](), true, "Problem")
	return huma.Operation{
		OperationID: op.id, Method: op.method, Path: op.path, Summary: op.summary, Description: op.detail, Tags: []string{op.tag},
		Security:     []map[string][]string{{securityScheme: {string(op.role)}}},
		Extensions:   map[string]any{scopeExtension: op.scope},
		MaxBodyBytes: mostBody,
		// The body is here already.
		BodyReadTimeout: -1,
		Middlewares:     append(huma.Middlewares{guard}, op.middlewares...),
		Responses: map[string]*huma.Response{"default": {Description: "What is wrong",
			Headers: map[string]*huma.Header{
				"Retry-After":      {Description: "In how many seconds to ask again, where that helps.", Schema: &huma.Schema{Type: huma.TypeInteger}},
				"WWW-Authenticate": {Description: "With 401: how to be let in.", Schema: &huma.Schema{Type: huma.TypeString}},
				"Allow":            {Description: "With 405: which methods there are.", Schema: &huma.Schema{Type: huma.TypeString}},
			},
			Content: map[string]*huma.MediaType{"application/problem+json": {Schema: problems}}}},
	}
}

// refuse answers with a problem.
func (h *Handler) refuse(ctx huma.Context, p *Problem) {
	for name, values := range p.GetHeaders() {
		for _, v := range values {
			ctx.SetHeader(name, v)
		}
	}
	ctx.SetHeader("Content-Type", p.ContentType(""))
	ctx.SetStatus(p.Status)
	_ = json.NewEncoder(ctx.BodyWriter()).Encode(p)
}

// add registers an operation.
func add[I, O any](h *Handler, op operation, f func(context.Context, *session, *I) (*O, error)) {
	described := h.describe(op)
	huma.Register(h.api, described, func(ctx context.Context, in *I) (*O, error) {
		out, err := f(ctx, sessionOf(ctx), in)
		if err == nil {
			return out, nil
		}
		p := asProblem(err)
		if p.Status >= http.StatusInternalServerError && ctx.Err() == nil {
			h.cfg.Logger.WarnContext(ctx, "a request failed", "operation", op.id, "status", p.Status, "error", err)
		}
		return nil, p
	})
	if op.accepted {
		accepted := *described.Responses["200"]
		accepted.Description = http.StatusText(http.StatusAccepted)
		described.Responses["202"] = &accepted
	}
}

// answer is what most operations answer with.
type answer[T any] struct{ Body T }

func answered[T any](body T, err error) (*answer[T], error) {
	if err != nil {
		return nil, err
	}
	return &answer[T]{body}, nil
}

// Page is a page of a list.
type Page[T any] struct {
	Items []T `json:"items" nullable:"false"`
	// Next is the cursor of the next page.
	Next *string `json:"next" doc:"The cursor of the next page, null where this was the last."`
}

// Paging is what lists take. A cursor names a record at most: two texts of 512 bytes, each of which JSON may write as six, in base64.
type Paging struct {
	Cursor string `query:"cursor" maxLength:"10000" doc:"The next of the page before."`
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"The most rows of the page."`
}

// position is where a page ended, as a cursor has it: with the list that it is of, so that no other takes it.
type position[P any] struct {
	List string `json:"list"`
	At   P      `json:"at"`
}

// decode reads the cursor of a list into v, which stays as it is where there is none.
func decode[P any](p Paging, list string, v *P) error {
	if p.Cursor == "" {
		return nil
	}
	in := position[*P]{At: v}
	text, err := base64.RawURLEncoding.Strict().DecodeString(p.Cursor)
	if err == nil {
		err = json.Unmarshal(text, &in)
	}
	if err != nil || in.List != list || in.At == nil {
		return problem(http.StatusUnprocessableEntity, codeInvalidRequest, "the cursor is none of this list")
	}
	return nil
}

// paged is an input with Paging in it.
type paged interface{ paging() Paging }

func (p Paging) paging() Paging { return p }

// pages registers an operation that answers with a list in pages. read gets one row more than a page has, behind a
// position (its zero value: from the first): that there is one says that there is a next page. at is a row's position.
func pages[I paged, T, P any](h *Handler, op operation, read func(ctx context.Context, s *session, in *I, after P, limit int) ([]T, error), at func(T) P) {
	add(h, op, func(ctx context.Context, s *session, in *I) (*answer[Page[T]], error) {
		var after P
		limit := (*in).paging().Limit
		if err := decode((*in).paging(), op.id, &after); err != nil {
			return nil, err
		}
		list, err := read(ctx, s, in, after, limit+1)
		out := Page[T]{Items: orEmpty(list)}
		if len(list) > limit {
			out.Items = list[:limit]
			out.Next = cursor(op.id, at(list[limit-1]))
		}
		return answered(out, err)
	})
}

// whole registers an operation that answers with a list in one page.
func whole[I, T any](h *Handler, op operation, read func(context.Context, *session, *I) ([]T, error)) {
	add(h, op, func(ctx context.Context, s *session, in *I) (*answer[Page[T]], error) {
		list, err := read(ctx, s, in)
		return answered(Page[T]{Items: orEmpty(list)}, err)
	})
}

func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

func cursor[P any](list string, at P) *string {
	text, _ := json.Marshal(position[P]{list, at}) // numbers and texts
	s := base64.RawURLEncoding.EncodeToString(text)
	return &s
}

// TenantParam is a tenant that may be left out, which is not the same as the tenant "".
type TenantParam struct {
	Tenant string `query:"tenant" maxLength:"512" doc:"The tenant; \"\" is that of records without one. Left out: all, or the token's own."`
	given  bool
}

// Resolve implements huma.Resolver.
func (p *TenantParam) Resolve(ctx huma.Context) []error {
	u := ctx.URL()
	p.given = u.Query().Has("tenant")
	return nil
}

// filter is the tenant where it was given.
func (p *TenantParam) filter() *string {
	if !p.given {
		return nil
	}
	return &p.Tenant
}

// KeyParam names one record.
type KeyParam struct {
	TenantParam
	Key string `query:"key" required:"true" maxLength:"512" doc:"The record's key."`
}

func (s *session) key(tenant *string, record string) keyline.Key {
	k := keyline.Key{Record: record}
	switch {
	case tenant != nil:
		k.Tenant = *tenant
	case s.token.Tenant != nil:
		k.Tenant = *s.token.Tenant
	}
	return k
}

// WithReason is what every act says.
type WithReason struct {
	Reason string `json:"reason" minLength:"1" maxLength:"1000" pattern:"\\S" doc:"Why, for the audit."`
}

type none struct{}
