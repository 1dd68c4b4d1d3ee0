package store

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// How many records one statement looks at, and how many one page, whatever it finds.
const (
	behindChunk = 1000
	behindMost  = 20 * behindChunk
)

// Behind reads the records on which a consumer is behind their head: those with an
// id above after, in the order of ids, at most limit, of one tenant or (nil) of all. A page can have fewer: next is
// where to go on, 0 where that was all. ErrNotFound where there is no such consumer.
func (o *Operate) Behind(ctx context.Context, consumer string, tenant *string, after int64, limit int) (id int32, list []WhyRows, next int64, err error) {
	if id, err = o.s.FindConsumer(ctx, consumer); err != nil {
		return 0, nil, 0, err
	}
	err = o.snapshot(ctx, func(tx pgx.Tx) error {
		var ids []int64
		if ids, next, err = o.behindIDs(ctx, tx, id, tenant, after, limit); err != nil || len(ids) == 0 {
			return err
		}
		list, err = o.whyRows(ctx, tx, ids, id)
		return err
	})
	return id, list, next, translate("read records behind", err)
}

func (o *Operate) behindIDs(ctx context.Context, tx pgx.Tx, consumer int32, tenant *string, after int64, limit int) (ids []int64, next int64, err error) {
	for looked := 0; looked < behindMost; looked += behindChunk {
		rows, err := tx.Query(ctx, o.s.q("operate_behind"), consumer, after, behindChunk, tenant)
		if err != nil {
			return nil, 0, err
		}
		chunk, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct {
			Record int64
			Behind bool
		}])
		if err != nil {
			return nil, 0, err
		}
		for _, c := range chunk {
			if len(ids) == limit {
				return ids, after, nil
			}
			if after = c.Record; c.Behind {
				ids = append(ids, c.Record)
			}
		}
		if len(chunk) < behindChunk {
			return ids, 0, nil
		}
	}
	return ids, after, nil
}
