package faults

import (
	"context"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/examples/crm/internal/wrap"
)

// Sabotage breaks delivery itself, to show that the checks notice. It goes
// around everything else, recorders included: what it withholds was never run,
// whatever the runtime believes.
//
// "drop": the second event of each record is never handed over. "reorder": the
// second event is handed over after the third.
func Sabotage(consumers []keyline.Consumer, how string) ([]keyline.Consumer, error) {
	switch how {
	case "":
		return consumers, nil
	case "drop":
		return wrap.Each(consumers, func(_ keyline.Consumer, next wrap.Handler) wrap.Handler { return drop(next) }), nil
	case "reorder":
		return wrap.Each(consumers, func(_ keyline.Consumer, next wrap.Handler) wrap.Handler {
			return (&reorder{next: next, held: map[keyline.Key]*keyline.Delivery{}}).handle
		}), nil
	}
	return nil, fmt.Errorf("unknown sabotage %q: drop or reorder", how)
}

const victim = 2

func drop(next wrap.Handler) wrap.Handler {
	return func(ctx context.Context, tx pgx.Tx, batch []*keyline.Delivery) error {
		var rest []*keyline.Delivery
		for _, d := range batch {
			if d.Seq != victim {
				rest = append(rest, d)
			}
		}
		if len(rest) == 0 {
			return nil
		}
		return next(ctx, tx, rest)
	}
}

type reorder struct {
	next wrap.Handler
	mu   sync.Mutex
	held map[keyline.Key]*keyline.Delivery
}

func (r *reorder) handle(ctx context.Context, tx pgx.Tx, batch []*keyline.Delivery) error {
	for _, d := range batch {
		if d.Seq == victim {
			r.mu.Lock()
			r.held[d.Key] = d
			r.mu.Unlock()
			continue
		}
		if err := r.next(ctx, tx, []*keyline.Delivery{d}); err != nil {
			return err
		}
		r.mu.Lock()
		late := r.held[d.Key]
		r.mu.Unlock()
		if late == nil || d.Seq < victim {
			continue
		}
		if err := r.next(ctx, tx, []*keyline.Delivery{late}); err != nil {
			return err
		}
		r.mu.Lock()
		delete(r.held, d.Key)
		r.mu.Unlock()
	}
	return nil
}
