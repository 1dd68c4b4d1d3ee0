package crm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const (
	claimRequest = `
insert into crm.requests (organization, idempotency_key, operation, activity_id, fingerprint)
values ($1, $2, $3, $4, $5) on conflict do nothing`
	readRequest = `
select fingerprint, answer from crm.requests where organization = $1 and idempotency_key = $2`
	answerRequest = `
update crm.requests set answer = $3, activity_id = $4 where organization = $1 and idempotency_key = $2`
)

var errKeyInFlight = errors.New("the request with this idempotency key has no answer yet")

// claimKey takes the request's idempotency key for this transaction, or finds
// that it was answered before and puts that answer into a. The insert waits for
// another request with the same key that is under way; if that one rolls back, the
// key is ours. So two copies of a request never both run.
func (c change) claimKey(ctx context.Context, tx pgx.Tx, a *Activity) (answered bool, err error) {
	if c.IdempotencyKey == "" {
		return false, nil
	}
	fingerprint, err := c.fingerprint()
	if err != nil {
		return false, err
	}
	tag, err := tx.Exec(ctx, claimRequest, c.Organization, c.IdempotencyKey, c.op, c.id, fingerprint)
	if err != nil || tag.RowsAffected() == 1 {
		return false, err
	}
	var before, answer []byte
	if err := tx.QueryRow(ctx, readRequest, c.Organization, c.IdempotencyKey).Scan(&before, &answer); err != nil {
		return false, fmt.Errorf("read the answer to an idempotency key: %w", err)
	}
	switch {
	case !bytes.Equal(before, fingerprint):
		return false, ErrKeyReused
	case answer == nil:
		return false, errKeyInFlight
	}
	return true, json.Unmarshal(answer, a)
}

// keepAnswer writes down what this request is answered with.
func (c change) keepAnswer(ctx context.Context, tx pgx.Tx, a Activity) error {
	if c.IdempotencyKey == "" {
		return nil
	}
	answer, err := json.Marshal(a)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, answerRequest, c.Organization, c.IdempotencyKey, answer, a.ID); err != nil {
		return fmt.Errorf("keep the answer to an idempotency key: %w", err)
	}
	return nil
}

// fingerprint tells one request from another that comes under the same key.
func (c change) fingerprint() ([]byte, error) {
	id := c.id
	if c.op == OpCreate {
		id = uuid.Nil // drawn anew for each attempt
	}
	text, err := json.Marshal([]any{c.op, id, c.IfVersion, c.input})
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	return sum[:], nil
}
