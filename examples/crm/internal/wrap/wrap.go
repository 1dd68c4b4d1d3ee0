// Package wrap puts something around consumers' handlers, whichever of the
// three kinds they are.
package wrap

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline"
)

// Handler is a handler of any kind: tx is nil but for HandleTx, and batch has
// one delivery but for HandleBatch.
type Handler func(ctx context.Context, tx pgx.Tx, batch []*keyline.Delivery) error

// Each returns the consumers with around applied to their handlers. Unlike
// keyline.Config.Middleware, it sees transactions and whole batches.
func Each(consumers []keyline.Consumer, around func(keyline.Consumer, Handler) Handler) []keyline.Consumer {
	out := slices.Clone(consumers)
	for i, c := range consumers {
		switch {
		case c.Handle != nil:
			h := around(c, func(ctx context.Context, _ pgx.Tx, batch []*keyline.Delivery) error { return c.Handle(ctx, batch[0]) })
			out[i].Handle = func(ctx context.Context, d *keyline.Delivery) error { return h(ctx, nil, []*keyline.Delivery{d}) }
		case c.HandleTx != nil:
			h := around(c, func(ctx context.Context, tx pgx.Tx, batch []*keyline.Delivery) error {
				return c.HandleTx(ctx, tx, batch[0])
			})
			out[i].HandleTx = func(ctx context.Context, tx pgx.Tx, d *keyline.Delivery) error {
				return h(ctx, tx, []*keyline.Delivery{d})
			}
		case c.HandleBatch != nil:
			h := around(c, func(ctx context.Context, _ pgx.Tx, batch []*keyline.Delivery) error { return c.HandleBatch(ctx, batch) })
			out[i].HandleBatch = func(ctx context.Context, batch []*keyline.Delivery) error { return h(ctx, nil, batch) }
		}
	}
	return out
}
