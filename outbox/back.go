package outbox

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/internal/clock"
)

// BackOptions are the settings of a Back.
type BackOptions struct {
	// Force goes back although Keyline has not delivered all: the old drainer may then overtake it on these records.
	Force bool
	// Settle is how long writers wait at a time for Keyline to deliver the last events; 0 means 2 s.
	Settle   time.Duration
	Patience Patience
}

// Returned is what a Back has done.
type Returned struct {
	Table string `json:"table"`
	State State  `json:"state"`
	// Undelivered is how many records have events of the outbox that Keyline still delivers; with force alone more than 0.
	Undelivered Undelivered `json:"undelivered"`
}

// Undelivered is a count of records.
type Undelivered struct {
	Records int64 `json:"records"`
	// Exact is false where there are more than were counted.
	Exact bool `json:"exact"`
}

// undeliveredLimit is up to how many records are counted.
const undeliveredLimit = 1000

// Back gives the table back to its old drainer: rows that are inserted from then on wait for it. Events that Keyline has stay Keyline's. So that
// the old drainer does not overtake them, it waits, with writers waiting for a moment at a time, until every record of theirs
// is delivered, and no consumer is being started at older events. ErrConflict: Keyline does not drain. ErrUnavailable: records have undelivered events; nothing was changed.
func (o *Outbox) Back(ctx context.Context, by By, opts BackOptions) (Returned, error) {
	if opts.Settle <= 0 {
		opts.Settle = 2 * time.Second
	}
	p := opts.Patience.withDefaults()
	var r Returned
	for until := o.clock.Mono() + p.Wait; ; {
		pending := false
		p.Wait = max(until-o.clock.Mono(), time.Millisecond)
		err := o.change(ctx, p, func(ctx context.Context, a *attempt) error {
			r = Returned{}
			pending = false
			t, st, err := o.prepared(ctx, a.tx, o.name)
			if err != nil {
				return err
			}
			if t.state() != StateForwarding {
				return conflict("Keyline does not drain %s", t.name())
			}
			if err := a.lockDrainers(ctx, st); err != nil {
				return err
			}
			if err := a.lockTable(ctx, t, st.render("lock_writers")); err != nil {
				return err
			}
			if r.Undelivered, err = o.settled(ctx, a, t, st, opts); err != nil {
				return err
			}
			if r.Undelivered.Records > 0 && !opts.Force {
				pending = true
				return unavailable(nil, "%d records have events of %s that Keyline has not delivered, which the old drainer could overtake: "+
					"let workers run, or go back with force; nothing was changed", r.Undelivered.Records, t.name())
			}
			if name, err := o.beginning(ctx, a.tx); err != nil {
				return err
			} else if name != "" && !opts.Force {
				pending = true
				return unavailable(nil, "consumer %s begins with older events, and it is not known yet with which: "+
					"let workers run, or go back with force; nothing was changed", name)
			}
			if err := a.run(ctx, st.render("back")); err != nil {
				return err
			}
			a.o.reached("back")
			if t, err = o.read(ctx, a.tx, st.Table); err != nil {
				return err
			}
			r.Table, r.State = t.name(), t.state()
			return o.audit(ctx, a.tx, by, "outbox_back", t, r)
		})
		if !pending || o.clock.Mono()+p.Pause >= until {
			return r, err
		}
		if err := clock.Sleep(ctx, o.clock, p.Pause); err != nil {
			return r, err
		}
	}
}

// lookAgain is how often a Back that holds the writers looks whether all is delivered.
const lookAgain = 20 * time.Millisecond

// settled waits for a moment until Keyline has delivered all, and counts what it has not.
func (o *Outbox) settled(ctx context.Context, a *attempt, t *table, st *statement, opts BackOptions) (Undelivered, error) {
	for until := o.clock.Mono() + opts.Settle; ; {
		u, err := o.undelivered(ctx, a.tx, t, st)
		if err != nil || u.Records == 0 || !u.Exact || opts.Force || o.clock.Mono() >= until {
			return u, err
		}
		if err := clock.Sleep(ctx, o.clock, lookAgain); err != nil {
			return u, err
		}
	}
}

// beginning is a consumer of which it is still being written down where it begins on each record, "" where there is none: what it
// has not got cannot be counted.
func (o *Outbox) beginning(ctx context.Context, q querier) (name string, err error) {
	err = q.QueryRow(ctx, `select coalesce(min(c.name), '') from `+o.schema+`.consumers c where c.status = 'backfilling'`).Scan(&name)
	return name, failed("look for consumers that begin", err)
}

func (o *Outbox) undelivered(ctx context.Context, q querier, t *table, st *statement) (Undelivered, error) {
	var u Undelivered
	err := q.QueryRow(ctx, st.render("undelivered"), keyPrefix(t), undeliveredLimit).Scan(&u.Records)
	u.Exact = u.Records <= undeliveredLimit
	return u, failed("count what is not delivered", err)
}

// BackSQL is what Back would run now.
func (o *Outbox) BackSQL(ctx context.Context) ([]string, error) {
	return o.planned(ctx, func(t *table, st *statement) ([]string, error) {
		if t.state() != StateForwarding {
			return nil, conflict("Keyline does not drain %s", t.name())
		}
		return []string{st.render("lock_drainers"), st.render("lock_writers"), st.render("undelivered"), st.render("back")}, nil
	})
}

// planned renders the statements of a prepared table.
func (o *Outbox) planned(ctx context.Context, f func(*table, *statement) ([]string, error)) (texts []string, err error) {
	err = o.look(ctx, func(_ pgx.Tx, t *table) error {
		if t.settings == nil {
			return conflict("%s is not prepared: run `keyline outbox prepare` first", t.name())
		}
		texts, err = f(t, o.statement(t, *t.settings))
		return err
	})
	return texts, err
}
