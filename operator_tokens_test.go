package keyline_test

import (
	"strings"
	"testing"
	"time"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
)

func TestATokenIsKnownByItsHashAndItsNameIsGivenOnce(t *testing.T) {
	t.Parallel()
	db, ctx := testdb.New(t), t.Context()
	o := newOperator(t, db, keyline.RoleAdmin)
	issued := must(o.CreateToken(ctx, keyline.NewToken{Name: "ci", Role: keyline.RoleOperator, Tenant: ptr("acme"), ExpiresIn: time.Hour}, "for the pipeline"))(t)
	if !strings.HasPrefix(issued.Secret, "kl_") || len(issued.Secret) < 45 || !issued.Live || issued.CreatedBy != "olga" || issued.ExpiresAt == nil ||
		issued.ExpiresAt.Sub(issued.CreatedAt).Round(time.Second) != time.Hour {
		t.Errorf("%+v", issued)
	}
	// Nothing in the database is the secret, in any of its parts.
	text := scalar[string](t, db.Pool(), "select (select string_agg(t::text, '') from keyline.api_tokens t) || (select string_agg(a::text, '') from keyline.audit a)")
	if random := strings.SplitN(issued.Secret, "_", 3)[2]; strings.Contains(text, random[:8]) || strings.Contains(text, random[len(random)-8:]) {
		t.Errorf("the database has the secret: %s", text)
	}
	gate := must(keyline.NewGate(db.Pool(), keyline.GateConfig{}))(t)
	if !must(gate.AnyToken(ctx))(t) {
		t.Error("there is a token, and it is not seen")
	}
	in, token, err := gate.Open(ctx, issued.Secret)
	if err != nil || token.Name != "ci" || token.Role != string(keyline.RoleOperator) || *token.Tenant != "acme" {
		t.Fatalf("%+v %v", token, err)
	}
	_, err = in.Overview(ctx)
	wantError(t, err, nil, keyline.CodePermissionDenied) // it is one tenant's

	for name, n := range map[string]keyline.NewToken{
		"no name": {Role: keyline.RoleViewer}, "a space": {Name: " a", Role: keyline.RoleViewer}, "a long name": {Name: strings.Repeat("a", 101), Role: keyline.RoleViewer},
		"control": {Name: "a\x1b", Role: keyline.RoleViewer}, "no role": {Name: "a"}, "another role": {Name: "a", Role: "root"},
		"negative": {Name: "a", Role: keyline.RoleViewer, ExpiresIn: -1}, "tenant": {Name: "a", Role: keyline.RoleViewer, Tenant: ptr("\x00")},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := o.CreateToken(ctx, n, "")
			wantError(t, err, keyline.ErrInvalid, keyline.CodeInvalidArgument)
		})
	}
	if got := must(o.RevokeToken(ctx, issued.ID, "leaked"))(t); got.Live || got.RevokedBy != "olga" {
		t.Errorf("%+v", got)
	}
	_, _, err = gate.Open(ctx, issued.Secret)
	wantError(t, err, nil, keyline.CodeUnauthenticated)
	_, err = o.RevokeToken(ctx, issued.ID, "again")
	wantError(t, err, keyline.ErrConflict, keyline.CodeNothingToDo)
	_, err = o.RevokeToken(ctx, 99, "")
	wantError(t, err, keyline.ErrNotFound, keyline.CodeNotFound)
	// Not after it was revoked either: the audit says for ever whose acts they were.
	_, err = o.CreateToken(ctx, keyline.NewToken{Name: "ci", Role: keyline.RoleViewer}, "")
	wantError(t, err, keyline.ErrConflict, keyline.CodeConstraint)
	if must(gate.AnyToken(ctx))(t) {
		t.Error("a revoked token lets people in")
	}
	lines := must(o.Audit(ctx, keyline.AuditFilter{}))(t)
	if len(lines) != 2 || lines[0].Action != "revoke_token" || lines[0].Target != "token ci" || lines[0].Reason != "leaked" || lines[1].Action != "create_token" || lines[1].Reason != "for the pipeline" {
		t.Errorf("%+v", lines)
	}
}

func TestTokensAreAnAdminsAndOneTenantsAreThatTenants(t *testing.T) {
	t.Parallel()
	db, ctx := testdb.New(t), t.Context()
	all := newOperator(t, db, keyline.RoleAdmin)
	acme := must(keyline.NewOperator(db.Pool(), keyline.OperatorConfig{Actor: "ada", Role: keyline.RoleAdmin, Tenant: ptr("acme")}))(t)
	whole := must(all.CreateToken(ctx, keyline.NewToken{Name: "whole", Role: keyline.RoleViewer}, ""))(t)
	other := must(all.CreateToken(ctx, keyline.NewToken{Name: "other", Role: keyline.RoleViewer, Tenant: ptr("other")}, ""))(t)
	mine := must(acme.CreateToken(ctx, keyline.NewToken{Name: "mine", Role: keyline.RoleAdmin}, ""))(t)
	if mine.Tenant == nil || *mine.Tenant != "acme" {
		t.Errorf("one tenant's admin made %+v", mine)
	}
	_, err := acme.CreateToken(ctx, keyline.NewToken{Name: "more", Role: keyline.RoleViewer, Tenant: ptr("other")}, "")
	wantError(t, err, nil, keyline.CodePermissionDenied)
	for _, id := range []int64{whole.ID, other.ID} {
		_, err := acme.RevokeToken(ctx, id, "")
		wantError(t, err, keyline.ErrNotFound, keyline.CodeNotFound)
	}
	if list := must(acme.Tokens(ctx, keyline.TokenFilter{}))(t); len(list) != 1 || list[0].ID != mine.ID {
		t.Errorf("%+v", list)
	}
	if list := must(all.Tokens(ctx, keyline.TokenFilter{}))(t); len(list) != 3 || !list[1].Live || !list[2].Live {
		t.Errorf("%+v", list)
	}
	if list := must(acme.Audit(ctx, keyline.AuditFilter{}))(t); len(list) != 1 || list[0].Target != "token mine" {
		t.Errorf("%+v", list)
	}
	for _, role := range []keyline.Role{keyline.RoleViewer, keyline.RoleOperator} {
		o := newOperator(t, db, role)
		_, err := o.Tokens(ctx, keyline.TokenFilter{})
		wantError(t, err, nil, keyline.CodePermissionDenied)
		_, err = o.CreateToken(ctx, keyline.NewToken{Name: "x", Role: keyline.RoleViewer}, "")
		wantError(t, err, nil, keyline.CodePermissionDenied)
		_, err = o.RevokeToken(ctx, mine.ID, "")
		wantError(t, err, nil, keyline.CodePermissionDenied)
	}
}
