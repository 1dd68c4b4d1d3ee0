package keyline

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/keylinehq/keyline/store"
)

// Token is a token of the admin API, without its secret, which nobody has but who was given it.
type Token = store.TokenRow

// NewToken is a token before it is made.
type NewToken struct {
	// Name is who acts, as the audit names them: at most 100 bytes, and no name that was given before. Required.
	Name string
	// Role is what its bearer may do. Required.
	Role Role
	// Tenant is the one tenant that it is for; nil: all, or that of the Operator that makes it.
	Tenant *string
	// ExpiresIn is how long it lasts; 0: for ever.
	ExpiresIn time.Duration
}

// IssuedToken is a token that was just made.
type IssuedToken struct {
	Token
	// Secret is what its bearer sends. It is shown this once and kept nowhere.
	Secret string `json:"secret"`
}

// TokenFilter says which page of the tokens.
type TokenFilter struct {
	// Below is the id to go on below, for the next page; 0: from the newest.
	Below int64
	// Limit is the most of a page; 0 means 100.
	Limit int
}

// The form of a secret: the prefix, so that scanners for leaked secrets know it, the token's number, and
// 32 random bytes.
const (
	secretPrefix = "kl_"
	secretBytes  = 32
	mostName     = 100
)

// makeSecret draws a secret; hash is what the database keeps. A plain hash is enough: it
// hides 256 random bits, which no dictionary has.
func makeSecret() (text string, hash []byte) {
	random := make([]byte, secretBytes)
	_, _ = rand.Read(random) // never fails
	text = base64.RawURLEncoding.EncodeToString(random)
	return text, hashSecret(text)
}

func hashSecret(text string) []byte {
	h := sha256.Sum256([]byte(text))
	return h[:]
}

func formatSecret(id int64, text string) string {
	return fmt.Sprintf("%s%d_%s", secretPrefix, id, text)
}

// parseSecret is the other way round.
func parseSecret(secret string) (id int64, text string, ok bool) {
	rest, ok := strings.CutPrefix(secret, secretPrefix)
	number, text, found := strings.Cut(rest, "_")
	id, err := strconv.ParseInt(number, 10, 64)
	return id, text, ok && found && err == nil && id > 0 && len(text) == base64.RawURLEncoding.EncodedLen(secretBytes)
}

// Tokens implements Operator.
func (o *operator) Tokens(ctx context.Context, f TokenFilter) ([]Token, error) {
	const op = "list tokens"
	if err := o.mayAdmin(op); err != nil {
		return nil, err
	}
	orInt(&f.Limit, defaultList)
	list, err := o.store.Tokens(ctx, o.cfg.Tenant, f.Below, f.Limit)
	return list, operated(op, err)
}

// CreateToken implements Operator.
func (o *operator) CreateToken(ctx context.Context, n NewToken, reason string) (IssuedToken, error) {
	const op = "create token"
	if err := o.mayAdmin(op); err != nil {
		return IssuedToken{}, err
	}
	if err := o.may(op, reason, false); err != nil {
		return IssuedToken{}, err
	}
	if err := n.validate(); err != nil {
		return IssuedToken{}, withOp(op, err)
	}
	switch {
	case n.Tenant == nil:
		n.Tenant = o.cfg.Tenant
	case !o.sees(*n.Tenant):
		return IssuedToken{}, &Error{Code: CodePermissionDenied, Message: "the operator is another tenant's", op: op}
	}
	text, hash := makeSecret()
	t, err := o.store.CreateToken(ctx, Token{Name: n.Name, Role: string(n.Role), Tenant: n.Tenant}, hash, n.ExpiresIn, o.cfg.Actor, reason)
	if err != nil {
		err = operated(op, err)
		if errors.Is(err, &Error{Code: CodeConstraint}) {
			err = &Error{Code: CodeConstraint, Field: "Name", Message: fmt.Sprintf("the name %q was given before: if its secret has never arrived, revoke that token and choose another name", n.Name), op: op, class: ErrConflict, cause: err}
		}
		return IssuedToken{}, err
	}
	return IssuedToken{Token: t, Secret: formatSecret(t.ID, text)}, nil
}

// validate names the field that makes no sense.
func (n NewToken) validate() error {
	switch {
	case strings.TrimSpace(n.Name) != n.Name || n.Name == "" || len(n.Name) > mostName || !printableText(n.Name):
		return wrong("Name", "must be 1 to %d printable bytes, and neither begin nor end with a space", mostName)
	case !n.Role.known():
		return wrong("Role", "must be %q, %q or %q", RoleViewer, RoleOperator, RoleAdmin)
	case n.ExpiresIn < 0:
		return wrong("ExpiresIn", "must not be negative")
	case n.Tenant != nil && checkText("Tenant", *n.Tenant, maxNameBytes) != nil:
		return wrong("Tenant", "is no name of a tenant")
	}
	return nil
}

func printableText(s string) bool {
	return utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
}

// RevokeToken implements Operator.
func (o *operator) RevokeToken(ctx context.Context, id int64, reason string) (Token, error) {
	const op = "revoke token"
	if err := o.mayAdmin(op); err != nil {
		return Token{}, err
	}
	if err := o.may(op, reason, false); err != nil {
		return Token{}, err
	}
	revoked, err := o.store.RevokeToken(ctx, id, o.cfg.Tenant, o.cfg.Actor, reason)
	if err != nil {
		return Token{}, operated(op, err)
	}
	t, err := o.store.FindToken(ctx, id)
	switch {
	case err != nil:
		return Token{}, operated(op, err)
	case o.cfg.Tenant != nil && (t.Tenant == nil || *t.Tenant != *o.cfg.Tenant):
		return Token{}, notFound(op, "token %d", id)
	case !revoked:
		return t.TokenRow, nothing(op, "token %d is revoked", id)
	}
	return t.TokenRow, nil
}
