package outbox

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// PrepareOptions are the settings of a Prepare.
type PrepareOptions struct {
	// Guard also refuses that rows are ended by whoever does not hold the drainers' lock. Only once every drainer takes it:
	// one that does not can end no row any more.
	Guard    bool
	Patience Patience
}

// Prepared is what a Prepare has done.
type Prepared struct {
	Table string `json:"table"`
	State State  `json:"state"`
	// Changed is false where all was so already.
	Changed bool `json:"changed"`
	// Lock is what drainers run first in each transaction.
	Lock string `json:"lock"`
}

// Prepare adds the columns, the functions and the triggers that later steps need. Old writers and old drainers go on as before. It may be
// run again, also with other settings, as long as Keyline does not drain.
func (o *Outbox) Prepare(ctx context.Context, s Settings, by By, opts PrepareOptions) (Prepared, error) {
	if err := s.Validate(); err != nil {
		return Prepared{}, err
	}
	s = s.WithDefaults()
	var done Prepared
	err := o.change(ctx, opts.Patience, func(ctx context.Context, a *attempt) error {
		t, err := o.read(ctx, a.tx, o.name)
		if err != nil {
			return err
		}
		if err := o.preparable(ctx, a.tx, t, s); err != nil {
			return err
		}
		st := o.statement(t.with(s), s)
		done = Prepared{Table: t.name(), State: t.state(), Lock: "select " + st.Fn("lock") + "();"}
		texts := o.prepareStatements(t, s, opts.Guard)
		if len(texts) == 0 {
			return nil
		}
		if t.state() == StateForwarding {
			return conflict("Keyline drains %s: its settings change only after `keyline outbox back`", t.name())
		}
		if err := a.lockTable(ctx, t, "lock table "+st.Table+" in access exclusive mode"); err != nil {
			return err
		}
		if err := a.path(ctx, st); err != nil {
			return err
		}
		for _, text := range texts {
			if err := a.run(ctx, text); err != nil {
				return err
			}
		}
		a.o.reached("prepared")
		if t, err = o.read(ctx, a.tx, st.Table); err != nil {
			return err
		}
		done.State, done.Changed = t.state(), true
		return o.audit(ctx, a.tx, by, "outbox_prepared", t, map[string]any{"state": t.state(), "settings": s})
	})
	return done, err
}

// PrepareSQL is what Prepare would run now.
func (o *Outbox) PrepareSQL(ctx context.Context, s Settings, opts PrepareOptions) (texts []string, err error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	s = s.WithDefaults()
	err = o.look(ctx, func(tx pgx.Tx, t *table) error {
		texts = o.prepareStatements(t, s, opts.Guard)
		return o.preparable(ctx, tx, t, s)
	})
	return texts, err
}

// prepareStatements are what is missing.
func (o *Outbox) prepareStatements(t *table, s Settings, guard bool) []string {
	st := o.statement(t.with(s), s)
	var texts []string
	if t.column(s.KeyColumn) == nil || t.column(s.AtColumn) == nil {
		texts = append(texts, st.render("columns"))
	}
	if t.settings == nil || *t.settings != s || !t.has(triggerFill) {
		texts = append(texts, st.render("functions"), st.render("fill_trigger"))
	}
	if guard && !t.has(guardTriggers...) {
		texts = append(texts, st.render("guard_triggers"))
	}
	return texts
}

// with is the table with the columns that the settings add.
func (t *table) with(s Settings) *table {
	c := *t
	c.Columns = slices.Clone(t.Columns)
	for _, add := range []Column{{Name: s.KeyColumn, Type: "text"}, {Name: s.AtColumn, Type: timestamptz}} {
		if c.column(add.Name) == nil {
			c.Columns = append(c.Columns, add)
		}
	}
	return &c
}

// preparable refuses settings that the table does not bear.
func (o *Outbox) preparable(ctx context.Context, tx pgx.Tx, t *table, s Settings) error {
	list, err := o.blockers(ctx, tx, t, s)
	if err == nil && len(list) > 0 {
		err = invalid("%s: %s", t.name(), strings.Join(list, "; "))
	}
	return err
}

// ids are the types that have one text each, whatever the session's settings.
var ids = []string{"smallint", "integer", "bigint", "numeric", "uuid", "text", "character varying", "character"}

func plainType(t string, allowed ...string) bool {
	base, _, _ := strings.Cut(t, "(")
	return slices.Contains(allowed, base)
}

// blockers are the reasons for which the settings cannot be used on the table.
func (o *Outbox) blockers(ctx context.Context, tx pgx.Tx, t *table, s Settings) ([]string, error) {
	var list []string
	refuse := func(when bool, text string) {
		if when {
			list = append(list, text)
		}
	}
	assigned, _ := s.assignments()
	columns := []string{s.ID, s.Created}
	for _, a := range assigned {
		columns = append(columns, a.column)
	}
	for _, name := range columns {
		refuse(t.column(name) == nil, "there is no column "+name)
	}
	if len(list) > 0 {
		return list, nil
	}
	id, created := t.column(s.ID), t.column(s.Created)
	refuse(!plainType(id.Type, ids...), "the id "+id.Name+" is of type "+id.Type+": it has to be a number, a uuid or a text")
	refuse(!id.NotNull, "the id "+id.Name+" may be null")
	refuse(id.Generated, "the id "+id.Name+" is generated, which is after triggers read it")
	refuse(!plainType(created.Type, append([]string{timestamptz, "timestamp without time zone", "date"}, ids[:4]...)...) && s.Created != s.ID,
		"the column "+created.Name+" is of type "+created.Type+": it has to be a time or a number")
	if c := t.column(s.KeyColumn); c != nil {
		refuse(c.Type != "text" || c.Generated, "the key column "+c.Name+" is no plain column of type text")
	}
	if c := t.column(s.AtColumn); c != nil {
		refuse(c.Type != timestamptz || c.Generated, "the column "+c.Name+" is no plain column of type "+timestamptz)
	}
	var unique bool
	err := tx.QueryRow(ctx, `select exists (select from pg_index i join pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[0]
		where i.indrelid = $1 and a.attname = $2 and i.indisunique and i.indisvalid and i.indimmediate and i.indpred is null and i.indnkeyatts = 1)`,
		t.OID, s.ID).Scan(&unique)
	if err != nil {
		return nil, failed("read the table's indexes", err)
	}
	refuse(!unique, "no unique index is on the id "+s.ID+" alone: two rows of one id would be one event")
	for _, c := range t.Columns {
		for name, expr := range s.expressions() {
			refuse(c.Generated && mentions(expr, c.Name), name+" reads the generated column "+c.Name+", which triggers see too late: use its expression")
		}
	}
	misread, err := o.misread(ctx, tx, t, s)
	if list = append(list, misread...); err != nil || len(list) > 0 {
		return list, err
	}
	undone, err := o.undone(ctx, tx, o.statement(t, s))
	refuse(undone, undoneText)
	return list, err
}

const undoneText = "setting done leaves rows waiting: what it sets has to end what setting pending says"

// undone says whether a row would still wait once it is marked done, as far as can be told before. Then each insert would fail once
// Keyline drains.
func (o *Outbox) undone(ctx context.Context, tx pgx.Tx, st *statement) (is bool, err error) {
	inner, err := tx.Begin(ctx)
	if err != nil {
		return false, failed("try what marks rows done", err)
	}
	err = inner.QueryRow(ctx, st.render("undone")).Scan(&is)
	if rollback := inner.Rollback(ctx); rollback != nil {
		return false, failed("try what marks rows done", rollback)
	}
	if sqlState(err) != "" {
		return false, nil // an expression that cannot be asked about such a row: what waits is asked at the cut-over
	}
	return is, failed("try what marks rows done", err)
}

// kinds are the types that expressions may have, where not every one will do.
var kinds = map[string]struct {
	oids []uint32
	say  string
}{
	"payload":     {[]uint32{pgtype.JSONOID, pgtype.JSONBOID}, "json or jsonb"},
	"headers":     {[]uint32{pgtype.JSONOID, pgtype.JSONBOID}, "json or jsonb"},
	"version":     {[]uint32{pgtype.Int2OID, pgtype.Int4OID, pgtype.Int8OID}, "integer"},
	"occurred_at": {[]uint32{pgtype.TimestamptzOID}, timestamptz},
	"pending":     {[]uint32{pgtype.BoolOID}, "boolean"},
}

// misread are the expressions that the database does not take, or whose type is the wrong one. None is evaluated.
func (o *Outbox) misread(ctx context.Context, tx pgx.Tx, t *table, s Settings) ([]string, error) {
	var list []string
	st := o.statement(t, s)
	if _, err := tx.Exec(ctx, `set local search_path = `+st.Path); err != nil {
		return nil, failed("read the settings", err)
	}
	expressions := s.expressions()
	for _, name := range slices.Sorted(maps.Keys(expressions)) {
		inner, err := tx.Begin(ctx)
		if err != nil {
			return nil, failed("read the settings", err)
		}
		described, err := inner.Prepare(ctx, "", "select ("+expressions[name]+"\n) from "+st.Table+" as "+st.Alias)
		if rollback := inner.Rollback(ctx); rollback != nil {
			return nil, failed("read the settings", rollback)
		}
		kind, limited := kinds[name]
		switch {
		case err != nil && sqlState(err) == "":
			return nil, failed("read the settings", err)
		case err != nil:
			list = append(list, "setting "+name+": "+err.Error())
		case len(described.Fields) != 1 || len(described.ParamOIDs) > 0:
			list = append(list, "setting "+name+" is no single expression")
		case limited && !slices.Contains(kind.oids, described.Fields[0].DataTypeOID):
			list = append(list, "setting "+name+" is not of type "+kind.say+": cast it")
		}
	}
	return list, nil
}
