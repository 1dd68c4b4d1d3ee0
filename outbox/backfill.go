package outbox

import (
	"context"

	"github.com/keylinehq/keyline/internal/clock"
)

// BackfillOptions are the settings of a Backfill.
type BackfillOptions struct {
	// AllRows also takes rows that are done; otherwise those that wait alone.
	AllRows bool
	// Chunk is how many rows it changes in one transaction; 0 means 1,000. Drainers wait for as long as one takes.
	Chunk    int
	Patience Patience
}

// Backfilled is what a Backfill has done.
type Backfilled struct {
	Table string `json:"table"`
	Rows  int64  `json:"rows"`
}

// Backfill gives old rows the key that the trigger would have given them, in chunks. It can be stopped and started
// again: what is done stays. Rows that others have locked are passed over, and come again, until none is left.
//
// Each chunk takes the drainers' lock for itself alone: a drainer that passes over locked rows would otherwise pass over those
// of the chunk, and deliver younger ones of the same record first.
func (o *Outbox) Backfill(ctx context.Context, by By, opts BackfillOptions) (Backfilled, error) {
	if opts.Chunk <= 0 {
		opts.Chunk = 1000
	}
	p := opts.Patience.withDefaults()
	var (
		done  Backfilled
		last  *string
		until = o.clock.Mono() + p.Wait
		round int64 // rows of this round
	)
	for {
		var n, left int64
		before := last
		err := o.change(ctx, p, func(ctx context.Context, a *attempt) error {
			n, left, last = 0, 0, before
			t, st, err := o.prepared(ctx, a.tx, o.name)
			if err != nil {
				return err
			}
			if t.state() == StatePrepared {
				return conflict("%s has no guard: once every drainer takes the lock, run `keyline outbox prepare --guard`", t.name())
			}
			done.Table, st.AllRows = t.name(), opts.AllRows
			if err := a.path(ctx, st); err != nil {
				return err
			}
			if err := a.lockDrainers(ctx, st); err != nil {
				return err
			}
			if err := a.tx.QueryRow(ctx, st.render("backfill"), opts.Chunk, before).Scan(&n, &last); err != nil {
				return failed("fill in keys", err)
			}
			a.o.reached("filled")
			if n > 0 && done.Rows > 0 {
				return nil
			}
			if n > 0 {
				return o.audit(ctx, a.tx, by, "outbox_backfilled", t, map[string]any{"all_rows": opts.AllRows})
			}
			return failed("fill in keys", a.tx.QueryRow(ctx, `select count(*) from (select from `+st.Table+` as `+st.Alias+
				` where `+st.HasNoKey+` and (`+st.PendingWhere+` or $1) limit 1) x`, opts.AllRows).Scan(&left))
		})
		if err != nil {
			return done, err
		}
		done.Rows, round = done.Rows+n, round+n
		switch {
		case n > 0:
			until = o.clock.Mono() + p.Wait
			continue
		case left == 0:
			return done, nil
		case round == 0 && o.clock.Mono()+p.Pause >= until:
			return done, unavailable(nil, "others hold rows that have no key yet; the others have theirs: try again")
		}
		if round == 0 {
			if err := clock.Sleep(ctx, o.clock, p.Pause); err != nil {
				return done, err
			}
		}
		last, round = nil, 0
	}
}

// BackfillSQL is what Backfill would run now, for each chunk.
func (o *Outbox) BackfillSQL(ctx context.Context, opts BackfillOptions) ([]string, error) {
	return o.planned(ctx, func(_ *table, st *statement) ([]string, error) {
		st.AllRows = opts.AllRows
		return []string{st.render("lock_drainers"), st.render("backfill")}, nil
	})
}
