package keyline

import (
	"context"
	"crypto/subtle"
	"errors"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keylinehq/keyline/store"
)

// CodeUnauthenticated is the code of an Error where no token that lives was shown: none, an unknown one, one
// that has expired or was revoked. Nobody is told which.
const CodeUnauthenticated = "unauthenticated"

// Gate lets the bearers of tokens operate: it turns a token's secret into the
// Operator that its bearer may be. It is safe for concurrent use.
type Gate struct {
	pool  *pgxpool.Pool
	cfg   GateConfig
	store *store.Operate
}

// GateConfig is what every Operator behind a Gate has.
type GateConfig struct {
	// Schema is Keyline's schema; "" means "keyline".
	Schema string
	// Redact and PayloadLimit are as in OperatorConfig.
	Redact       Redact
	PayloadLimit int64
}

// NewGate makes a Gate on a pool, which stays the caller's. Nothing is connected.
// Its sessions need the rights of the database role that ends in _admin: that of the operators may not
// read what tokens are recognized by, so that Open fails with CodePermissionDenied.
func NewGate(pool *pgxpool.Pool, cfg GateConfig) (*Gate, error) {
	if pool == nil {
		return nil, wrong("pool", "is nil")
	}
	s, err := store.NewOperate(pool, cfg.Schema)
	if err != nil {
		return nil, wrong("Schema", "%v", err)
	}
	return &Gate{pool: pool, cfg: cfg, store: s}, nil
}

// Open returns the Operator of a secret's bearer: it acts in the name of the token, with its role and
// for its tenant. The error has CodeUnauthenticated where there is no such token, or it has expired or was revoked.
func (g *Gate) Open(ctx context.Context, secret string) (Operator, Token, error) {
	const op = "open"
	refused := &Error{Code: CodeUnauthenticated, Message: "no token that lives", op: op}
	id, text, ok := parseSecret(secret)
	if !ok {
		return nil, Token{}, refused
	}
	t, err := g.store.FindToken(ctx, id)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return nil, Token{}, operated(op, err)
	}
	if same := subtle.ConstantTimeCompare(hashSecret(text), t.Hash); err != nil || same != 1 || !t.Live {
		return nil, Token{}, refused
	}
	if t.Stale {
		// A login that may not write it goes without.
		_ = g.store.TokenUsed(ctx, id)
	}
	o, err := NewOperator(g.pool, OperatorConfig{Schema: g.cfg.Schema, Actor: t.Name, Role: Role(t.Role), Tenant: t.Tenant,
		Redact: g.cfg.Redact, PayloadLimit: g.cfg.PayloadLimit})
	return o, t.TokenRow, err
}

// AnyToken reports whether there is a token that lives: without one nobody can come in.
func (g *Gate) AnyToken(ctx context.Context) (bool, error) {
	is, err := g.store.AnyToken(ctx)
	return is, operated("look for tokens", err)
}
