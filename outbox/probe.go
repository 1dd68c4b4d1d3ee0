package outbox

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// countLimit is up to how many waiting rows a look counts.
const countLimit = 1_000_000

// recentRows is how many of the last done rows a probe looks at, for what the next ones will be like.
const recentRows = 10_000

// Problem is what append would refuse about rows.
type Problem struct {
	Problem string `json:"problem"`
	Rows    int64  `json:"rows"`
	// Example is the id of one of them.
	Example string `json:"example"`
}

// Index is an index of the table.
type Index struct {
	Name       string `json:"name"`
	Definition string `json:"definition"`
	Unique     bool   `json:"unique"`
	Valid      bool   `json:"valid"`
}

// Backlog is what waits.
type Backlog struct {
	Rows int64 `json:"rows"`
	// Exact is false where there are more than were counted.
	Exact bool `json:"exact"`
	// Oldest is the least Created of them, as the database writes it; nil: none waits.
	Oldest *string `json:"oldest"`
	// WithoutKey is how many have no key in the key column.
	WithoutKey int64 `json:"without_key"`
}

// Report is what a Probe found.
type Report struct {
	Table        string   `json:"table"`
	State        State    `json:"state"`
	RowsEstimate int64    `json:"rows_estimate"` // the planner's; -1: not known
	Bytes        int64    `json:"bytes"`         // with indexes
	Columns      []Column `json:"columns"`
	Indexes      []Index  `json:"indexes"`
	// HasKeyColumn and HasAtColumn say whether Prepare has these still to add.
	HasKeyColumn bool `json:"has_key_column"`
	HasAtColumn  bool `json:"has_at_column"`
	// Triggers are the table's own.
	Triggers []string `json:"triggers"`
	Pending  Backlog  `json:"pending"`
	// UnusableKeys is how many of the rows that wait, and of the last 10,000 others, have no usable key: each becomes its own record.
	UnusableKeys Problem `json:"unusable_keys"`
	// Blockers are why the table cannot be prepared with these settings.
	Blockers []string `json:"blockers"`
	// Problems are what append would refuse, of the same rows: the cut-over does not pass rows that wait with them, and after it
	// writers could not insert more of them.
	Problems []Problem `json:"problems"`
	// WritersWithoutAppend are roles that may insert into the table, and may not append.
	WritersWithoutAppend []string `json:"writers_without_append"`
}

// Ready reports whether nothing was found that has to be mended first.
func (r Report) Ready() bool {
	return len(r.Blockers)+len(r.Problems)+len(r.WritersWithoutAppend) == 0
}

// Probe reads the physical table, and what the settings make of its rows. It changes nothing and locks nothing.
func (o *Outbox) Probe(ctx context.Context, s Settings) (Report, error) {
	if err := s.Validate(); err != nil {
		return Report{}, err
	}
	s = s.WithDefaults()
	r := Report{Indexes: []Index{}, Triggers: []string{}, Blockers: []string{}, Problems: []Problem{}, WritersWithoutAppend: []string{}}
	err := o.look(ctx, func(tx pgx.Tx, t *table) error {
		r.Table, r.State, r.Columns = t.name(), t.state(), t.Columns
		r.HasKeyColumn, r.HasAtColumn = t.column(s.KeyColumn) != nil, t.column(s.AtColumn) != nil
		if err := o.physical(ctx, tx, t, &r); err != nil {
			return err
		}
		list, err := o.blockers(ctx, tx, t, s)
		if err != nil {
			return err
		}
		r.Blockers = append(r.Blockers, list...)
		st := o.statement(t, s)
		if r.WritersWithoutAppend, err = o.writers(ctx, tx, t, st); err != nil || len(list) > 0 {
			return err // the expressions cannot be asked
		}
		if r.Pending, err = o.backlog(ctx, tx, st, countLimit); err != nil {
			return err
		}
		st.Recent = recentRows
		r.Problems, r.UnusableKeys, err = o.problems(ctx, tx, st)
		return err
	})
	return r, err
}

func (o *Outbox) physical(ctx context.Context, tx pgx.Tx, t *table, r *Report) error {
	err := tx.QueryRow(ctx, `select c.reltuples::bigint, pg_total_relation_size(c.oid) from pg_class c where c.oid = $1`, t.OID).Scan(&r.RowsEstimate, &r.Bytes)
	if err != nil {
		return failed("read the table's size", err)
	}
	rows, err := tx.Query(ctx, `select c.relname, pg_get_indexdef(i.indexrelid), i.indisunique, i.indisvalid
		from pg_index i join pg_class c on c.oid = i.indexrelid where i.indrelid = $1 order by c.relname`, t.OID)
	if err == nil {
		r.Indexes, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Index])
	}
	if err != nil {
		return failed("read the table's indexes", err)
	}
	rows, err = tx.Query(ctx, `select t.tgname from pg_trigger t where t.tgrelid = $1 and not t.tgisinternal and t.tgname not like 'zz\_keyline\_%' order by 1`, t.OID)
	if err == nil {
		r.Triggers, err = pgx.CollectRows(rows, pgx.RowTo[string])
	}
	return failed("read the table's triggers", err)
}

func (o *Outbox) backlog(ctx context.Context, q querier, st *statement, limit int64) (Backlog, error) {
	var b Backlog
	err := q.QueryRow(ctx, st.render("pending"), limit).Scan(&b.Rows, &b.Oldest, &b.WithoutKey)
	b.Exact = b.Rows <= limit
	return b, failed("count what waits", err)
}

func (o *Outbox) problems(ctx context.Context, q querier, st *statement) (list []Problem, unusable Problem, err error) {
	rows, err := q.Query(ctx, st.render("problems"))
	if err != nil {
		return nil, unusable, failed("look at the rows", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Problem])
	list = []Problem{}
	for _, p := range found {
		if p.Problem == "" {
			unusable = p
			continue
		}
		list = append(list, p)
	}
	return list, unusable, failed("look at the rows", err)
}

// writers are the roles that may insert and could not any more once each insert appends.
func (o *Outbox) writers(ctx context.Context, q querier, t *table, st *statement) ([]string, error) {
	rows, err := q.Query(ctx, st.render("writers"), t.OID)
	if err != nil {
		return nil, failed("read who may insert", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return list, failed("read who may insert", err)
}
