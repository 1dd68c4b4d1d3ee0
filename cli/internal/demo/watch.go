package demo

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline"
)

// How often the show tells what goes on.
const (
	watchPause = 250 * time.Millisecond
	ticks      = 4 // watches per line of totals
)

// mark is that a handler has done an event.
type mark struct {
	id       int64
	consumer string
	key      keyline.Key
	seq      int64
	worker   string
	typ      string
}

// trouble is a run that failed.
type trouble struct {
	at       time.Time
	consumer string
	record   string
	seq      int64
	typ      string
	attempt  int
	message  string
	dead     bool
}

// totals are what the line of totals says.
type totals struct{ appended, delivered, waiting, backoff int64 }

// watch tells the show what goes on, until ctx ends. It is for the eyes: the
// verdict does not use it.
func (d *demo) watch(ctx context.Context) error {
	if d.show.silent() {
		return nil
	}
	tick := d.Clock.NewTicker(watchPause)
	defer tick.Stop()
	var (
		last  int64
		since time.Time
	)
	for n := 1; ; n++ {
		select {
		case <-tick.C():
		case <-ctx.Done():
			return nil
		}
		if err := d.look(ctx, &last, &since, n%ticks == 0); err != nil {
			if ctx.Err() != nil {
				return nil //nolint:nilerr // the show is over
			}
			return err
		}
	}
}

func (d *demo) look(ctx context.Context, last *int64, since *time.Time, withTotals bool) error {
	rows, err := d.pool.Query(ctx, sqlMarks, *last)
	if err != nil {
		return err
	}
	marks, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (m mark, err error) {
		err = row.Scan(&m.id, &m.consumer, &m.key.Tenant, &m.key.Record, &m.seq, &m.worker, &m.typ)
		return m, err
	})
	if err != nil {
		return err
	}
	if len(marks) > 0 {
		*last = marks[len(marks)-1].id
	}
	if rows, err = d.pool.Query(ctx, sqlTroubles, *since); err != nil {
		return err
	}
	troubles, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (t trouble, err error) {
		err = row.Scan(&t.at, &t.consumer, &t.record, &t.seq, &t.typ, &t.attempt, &t.message, &t.dead)
		return t, err
	})
	if err != nil {
		return err
	}
	if len(troubles) > 0 {
		*since = troubles[len(troubles)-1].at
	}
	d.show.deliveries(marks)
	d.show.troubles(troubles)
	if !withTotals {
		return nil
	}
	var t totals
	if err := d.pool.QueryRow(ctx, sqlTotals).Scan(&t.appended, &t.delivered, &t.waiting, &t.backoff); err != nil {
		return err
	}
	d.show.totals(t)
	return nil
}
