package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// TokenRow is a token of the admin API, without what it is recognized by.
type TokenRow struct {
	ID   int64  `json:"id"`
	Name string `json:"name"`
	Role string `json:"role"`
	// Tenant is the one tenant that it is for; null: all.
	Tenant    *string   `json:"tenant"`
	CreatedAt time.Time `json:"created_at"`
	CreatedBy string    `json:"created_by"`
	// ExpiresAt is null where it never does.
	ExpiresAt *time.Time `json:"expires_at"`
	RevokedAt *time.Time `json:"revoked_at"`
	RevokedBy string     `json:"revoked_by"`
	// LastUsedAt is noted once a minute at most; null: never used.
	LastUsedAt *time.Time `json:"last_used_at"`
	// Live is true where it is neither expired nor revoked.
	Live bool `json:"live"`
}

// FoundToken is a token that somebody has shown the number of.
type FoundToken struct {
	TokenRow
	Hash []byte
	// Stale is true where its use was not noted lately.
	Stale bool
}

// CreateToken makes a token with the audit. lasts 0: for ever. An SQLSTATE 23505: the name was given before.
func (o *Operate) CreateToken(ctx context.Context, t TokenRow, hash []byte, lasts time.Duration, actor, reason string) (TokenRow, error) {
	var seconds *float64
	if lasts > 0 {
		s := lasts.Seconds()
		seconds = &s
	}
	rows, err := o.s.lease.Query(ctx, o.s.q("token_create"), t.Name, t.Role, t.Tenant, hash, seconds, actor, reason)
	if err != nil {
		return t, translate("create token", err)
	}
	t, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[TokenRow])
	return t, translate("create token", err)
}

// Tokens lists tokens, the newest first, those with an id below below (0: from the newest), of one tenant or (nil) of all.
func (o *Operate) Tokens(ctx context.Context, tenant *string, below int64, limit int) ([]TokenRow, error) {
	rows, err := o.s.hot.Query(ctx, o.s.q("token_list"), tenant, unlessZero(below), limit)
	if err != nil {
		return nil, translate("list tokens", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[TokenRow])
	return list, translate("list tokens", err)
}

// RevokeToken revokes a token of one tenant or (nil) of any, with the audit; false: there is none that lives.
func (o *Operate) RevokeToken(ctx context.Context, id int64, tenant *string, actor, reason string) (revoked bool, err error) {
	err = autocommit(ctx, o.s.lease, o.s.q("token_revoke"), []any{id, tenant, actor, reason}, one(&revoked))
	return revoked, translate("revoke token", err)
}

// FindToken reads a token by its number; ErrNotFound where there is none.
func (o *Operate) FindToken(ctx context.Context, id int64) (FoundToken, error) {
	var t FoundToken
	err := o.s.hot.QueryRow(ctx, o.s.q("token_find"), id).Scan(&t.ID, &t.Name, &t.Role, &t.Tenant, &t.CreatedAt, &t.CreatedBy, &t.ExpiresAt,
		&t.RevokedAt, &t.RevokedBy, &t.LastUsedAt, &t.Live, &t.Hash, &t.Stale)
	return t, foundOr(err, "token %d", id)
}

// TokenUsed notes that a token was used.
func (o *Operate) TokenUsed(ctx context.Context, id int64) error {
	_, err := o.s.lease.Exec(ctx, o.s.q("token_used"), id)
	return translate("note use of token", err)
}

// AnyToken reports whether there is a token that lives.
func (o *Operate) AnyToken(ctx context.Context) (is bool, err error) {
	err = o.s.hot.QueryRow(ctx, o.s.q("token_any")).Scan(&is)
	return is, translate("look for tokens", err)
}
