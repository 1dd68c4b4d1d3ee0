package outbox

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"
)

// CutoverOptions are the settings of a Cutover.
type CutoverOptions struct {
	// Limit is how many waiting rows at most it takes over, since writers wait meanwhile; 0 means 50,000.
	Limit    int64
	Patience Patience
}

// DefaultLimit is how many rows a Cutover takes over at most where nobody says.
const DefaultLimit = 50_000

// Moved is what a Cutover has done.
type Moved struct {
	Table string `json:"table"`
	// Rows is how many waited and were appended; Duplicates how many of them Keyline had already.
	Rows       int64 `json:"rows"`
	Duplicates int64 `json:"duplicates"`
	State      State `json:"state"`
}

// Cutover makes Keyline drain: in one transaction it appends what waits, in order, marks it done, and lets every later insert append.
// It waits for the drainers that hold the lock, and then, for the rest, writers wait for it.
// ErrConflict: it is done already, or something has to be done first. ErrUnavailable: others kept it from its locks; nothing was changed.
func (o *Outbox) Cutover(ctx context.Context, by By, opts CutoverOptions) (Moved, error) {
	if opts.Limit <= 0 {
		opts.Limit = DefaultLimit
	}
	var m Moved
	err := o.change(ctx, opts.Patience, func(ctx context.Context, a *attempt) error {
		m = Moved{}
		t, st, err := o.prepared(ctx, a.tx, o.name)
		if err != nil {
			return err
		}
		if err := a.path(ctx, st); err != nil {
			return err
		}
		if err := o.movable(ctx, a, t, st, opts.Limit); err != nil {
			return err
		}
		if err := a.lockDrainers(ctx, st); err != nil {
			return err
		}
		if err := a.lockTable(ctx, t, st.render("lock_writers")); err != nil {
			return err
		}
		// What came meanwhile is looked at too; from here on nothing does.
		if t, st, err = o.prepared(ctx, a.tx, st.Table); err != nil {
			return err
		}
		if err := o.movable(ctx, a, t, st, opts.Limit); err != nil {
			return err
		}
		if err := o.move(ctx, a, st, &m); err != nil {
			return err
		}
		if err := a.run(ctx, st.render("forward_triggers")); err != nil {
			return err
		}
		a.o.reached("forwarding")
		m.Table, m.State = t.name(), StateForwarding
		return o.audit(ctx, a.tx, by, "outbox_cutover", t, m)
	})
	return m, err
}

// movable refuses a cut-over that something stands in the way of.
func (o *Outbox) movable(ctx context.Context, a *attempt, t *table, st *statement, limit int64) error {
	switch {
	case t.state() == StateForwarding:
		return conflict("Keyline drains %s already", t.name())
	case len(t.disabled()) > 0:
		return conflict("triggers of %s are disabled: %s", t.name(), strings.Join(t.disabled(), ", "))
	case t.state() != StateGuarded || !t.has(triggerFill):
		return conflict("%s has no guard: once every drainer takes the lock, run `keyline outbox prepare --guard`", t.name())
	}
	if undone, err := o.undone(ctx, a.tx, st); err != nil || undone {
		if undone {
			err = invalid(undoneText)
		}
		return err
	}
	writers, err := o.writers(ctx, a.tx, t, st)
	if err != nil {
		return err
	}
	if len(writers) > 0 {
		return conflict("after it these roles could not insert into %s any more: %s; grant them %s_producer (`keyline migrate roles` makes it)",
			t.name(), strings.Join(writers, ", "), o.schema)
	}
	b, err := o.backlog(ctx, a.tx, st, countLimit)
	if err != nil {
		return err
	}
	if b.Rows > limit {
		more := ""
		if !b.Exact {
			more = "more than "
			b.Rows--
		}
		return conflict("%s%d rows of %s wait, and the limit is %d, since writers wait while they are appended: let the old drainer work them off, or raise the limit",
			more, b.Rows, t.name(), limit)
	}
	problems, _, err := o.problems(ctx, a.tx, st)
	if err != nil {
		return err
	}
	if len(problems) > 0 {
		p := problems[0]
		return conflict("%d waiting rows of %s cannot be appended, such as %s: %s", p.Rows, t.name(), p.Example, p.Problem)
	}
	return nil
}

// move appends what waits and marks it done. Nobody else changes the table meanwhile.
func (o *Outbox) move(ctx context.Context, a *attempt, st *statement, m *Moved) error {
	if err := o.appendAll(ctx, a, st, m); err != nil {
		return err
	}
	a.o.reached("appended")
	done, err := a.tx.Exec(ctx, st.render("mark"))
	if err != nil {
		return failed("mark what waited as done", err)
	}
	a.o.reached("marked")
	b, err := o.backlog(ctx, a.tx, st, 1)
	switch {
	case err != nil:
		return err
	case b.Rows > 0:
		return invalid(undoneText)
	case done.RowsAffected() != m.Rows:
		return conflict("%d rows were appended and %d marked done: a trigger of the table changes others; nothing was changed", m.Rows, done.RowsAffected())
	}
	return nil
}

// firstChunk is how many rows are appended with the plans of an installation that may be empty.
const firstChunk = 500

// appendAll appends in chunks that grow. A session's plans of append are made by its first calls: on an installation that is
// still empty they read whole tables, and what took 5 s takes minutes while writers wait. So plans are made anew as the tables grow.
func (o *Outbox) appendAll(ctx context.Context, a *attempt, st *statement, m *Moved) error {
	if err := a.run(ctx, st.render("moving")); err != nil {
		return err
	}
	if err := a.run(ctx, `set local enable_seqscan = off; set local jit = off`); err != nil {
		return err
	}
	for st.From, st.To = 0, firstChunk; ; st.From, st.To = st.To, 3*st.To {
		var rows, duplicates int64
		if err := a.tx.QueryRow(ctx, st.render("append"), pgx.QueryExecModeExec).Scan(&rows, &duplicates); err != nil {
			return failed("append what waits", err)
		}
		m.Rows, m.Duplicates = m.Rows+rows, m.Duplicates+duplicates
		if rows < st.To-st.From {
			st.From, st.To = 0, 0
			return nil
		}
		if err := a.run(ctx, `discard plans`); err != nil {
			return err
		}
	}
}

// CutoverSQL is what Cutover would run now, and why it would be refused, if so.
func (o *Outbox) CutoverSQL(ctx context.Context) ([]string, error) {
	return o.planned(ctx, func(t *table, st *statement) ([]string, error) {
		if t.state() == StateForwarding {
			return nil, conflict("Keyline drains %s already", t.name())
		}
		return []string{st.render("lock_drainers"), st.render("lock_writers"), st.render("moving"), st.render("append"), st.render("mark"), st.render("forward_triggers")}, nil
	})
}
