// Package fakeprovider stands in for a company that sends messages: the
// somewhere outside of the notification consumer. It keeps what it was asked to send
// in a table, apart from the caller's transactions as a real one would be, so
// that several worker processes talk to the same provider.
package fakeprovider

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keylinehq/keyline/examples/crm/crm"
)

const create = `
select pg_advisory_xact_lock(hashtextextended('fake_provider', 0));
create schema if not exists fake_provider;
create table if not exists fake_provider.messages (
  key text primary key,
  recipient text not null,
  body text not null,
  requests integer not null default 1
)`

// Provider is a crm.Provider that sends each key once.
type Provider struct{ pool *pgxpool.Pool }

var _ crm.Provider = (*Provider)(nil)

// New makes the provider, and its table where there is none.
func New(ctx context.Context, pool *pgxpool.Pool) (*Provider, error) {
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, create)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("create the fake provider: %w", err)
	}
	return &Provider{pool: pool}, nil
}

const send = `
insert into fake_provider.messages as m (key, recipient, body) values ($1, $2, $3)
on conflict (key) do update set requests = m.requests + 1`

// Send implements crm.Provider. A key that it has seen sends nothing.
func (p *Provider) Send(ctx context.Context, m crm.Message) error {
	_, err := p.pool.Exec(ctx, send, m.Key, m.To, m.Text)
	return err
}

// Counts are how many messages were sent, and how many requests asked for them.
func (p *Provider) Counts(ctx context.Context) (sent, requests int64, err error) {
	err = p.pool.QueryRow(ctx, `select count(*), coalesce(sum(requests), 0) from fake_provider.messages`).Scan(&sent, &requests)
	return sent, requests, err
}
