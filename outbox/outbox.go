package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/migrations"
)

// Outbox is an outbox table, over one connection. It is for one goroutine.
type Outbox struct {
	conn   *pgx.Conn
	schema string // Keyline's
	name   string // as it was given
	clock  clock.Clock
	// believed is how long the server believes in this client while it says nothing in the middle of a transaction.
	believed time.Duration
	// reached is told of each step inside a transaction; tests stop there.
	reached func(step string)
}

// Open makes an Outbox of a table that Keyline, in this schema ("" means "keyline"), is to take over. The connection stays the
// caller's and must be idle. It takes the table's owner with the right to create functions in the table's schema, and the rights
// of Keyline's schema owner; Probe and Status only read.
func Open(conn *pgx.Conn, schema, tableName string) (*Outbox, error) {
	if schema == "" {
		schema = migrations.DefaultSchema
	}
	if err := migrations.CheckSchemaName(schema); err != nil {
		return nil, invalid("%v", err)
	}
	if tableName == "" {
		return nil, invalid("no table was named")
	}
	return &Outbox{conn: conn, schema: schema, name: tableName, clock: clock.Real(), believed: frozen, reached: func(string) {}}, nil
}

// By is who does something to an outbox, and why: for the audit, in the same transaction.
type By struct{ Actor, Reason string }

// Patience is how long something waits for others, and how long these may have to wait for it.
type Patience struct {
	// Wait is how long it is tried in all, before it gives up with nothing changed; 0 means 2 minutes.
	Wait time.Duration
	// Lock is how long each try asks for a lock that writers of the table then queue behind; 0 means 300 ms.
	Lock time.Duration
	// Pause is how long writers have the table to themselves between two tries; 0 means 1 s.
	Pause time.Duration
	// Hold is how long writers wait at most once the lock is held; 0 means 1 minute.
	Hold time.Duration
}

func (p Patience) withDefaults() Patience {
	for _, f := range []struct {
		field *time.Duration
		value time.Duration
	}{{&p.Wait, 2 * time.Minute}, {&p.Lock, 300 * time.Millisecond}, {&p.Pause, time.Second}, {&p.Hold, time.Minute}} {
		if *f.field <= 0 {
			*f.field = f.value
		}
	}
	return p
}

// State is how far an outbox is on its way.
type State string

// The states.
const (
	// StateUntouched: nothing of Keyline is on the table.
	StateUntouched State = "untouched"
	// StatePrepared: keys are kept, and drainers can take the lock. They need not.
	StatePrepared State = "prepared"
	// StateGuarded: only a drainer that holds the lock ends rows.
	StateGuarded State = "guarded"
	// StateForwarding: Keyline drains. Each insert is an append.
	StateForwarding State = "forwarding"
)

// table is what the catalog says of an outbox.
type table struct {
	OID          uint32
	Schema, Name string
	Columns      []Column
	triggers     map[string]trigger // of ours
	settings     *Settings          // as prepared; nil: not prepared
}

type trigger struct{ enabled bool }

// Column is a column of the table.
type Column struct {
	Name      string `json:"name"`
	Type      string `json:"type"`
	NotNull   bool   `json:"not_null"`
	Generated bool   `json:"generated"`
	Default   string `json:"-"`
}

func (t *table) name() string { return t.Schema + "." + t.Name }

func (t *table) column(name string) *Column {
	for i := range t.Columns {
		if t.Columns[i].Name == name {
			return &t.Columns[i]
		}
	}
	return nil
}

var guardTriggers = []string{triggerGuard + "_update", triggerGuard + "_delete", triggerGuard + "_truncate"}

func (t *table) has(names ...string) bool {
	for _, n := range names {
		if !t.triggers[n].enabled {
			return false
		}
	}
	return true
}

func (t *table) state() State {
	switch {
	case t.has(triggerForward):
		return StateForwarding
	case t.has(guardTriggers...):
		return StateGuarded
	case t.settings != nil:
		return StatePrepared
	}
	return StateUntouched
}

// disabled are our triggers that somebody has switched off.
func (t *table) disabled() []string {
	list := []string{}
	for _, n := range append([]string{triggerFill, triggerAccept, triggerForward}, guardTriggers...) {
		if one, there := t.triggers[n]; there && !one.enabled {
			list = append(list, n)
		}
	}
	return list
}

// querier is a connection or a transaction of one.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// read reads the table from the catalog: nothing is remembered from one call to the next.
func (o *Outbox) read(ctx context.Context, q querier, name string) (*table, error) {
	t := &table{triggers: map[string]trigger{}}
	var kind string
	var family bool
	err := q.QueryRow(ctx, `select c.oid, n.nspname, c.relname, c.relkind::text,
		c.relispartition or exists (select from pg_inherits i where c.oid in (i.inhrelid, i.inhparent))
		from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = to_regclass($1)`, name).
		Scan(&t.OID, &t.Schema, &t.Name, &kind, &family)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, notFound("there is no table %s", name)
	case err != nil:
		return nil, failed("read the table", err)
	case kind != "r" || family:
		return nil, invalid("%s is no ordinary table: views, foreign tables, partitions and tables that inherit are not taken over", t.name())
	}
	rows, err := q.Query(ctx, `select a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attgenerated <> '',
			case when a.attgenerated = '' then coalesce(pg_get_expr(d.adbin, d.adrelid), '') else '' end
		from pg_attribute a left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum where a.attrelid = $1 and a.attnum > 0 and not a.attisdropped order by a.attnum`, t.OID)
	if err == nil {
		t.Columns, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Column])
	}
	if err != nil {
		return nil, failed("read the table's columns", err)
	}
	rows, err = q.Query(ctx, `select t.tgname, t.tgenabled in ('O', 'A'), coalesce(obj_description(t.tgfoid, 'pg_proc'), '')
		from pg_trigger t where t.tgrelid = $1 and not t.tgisinternal and t.tgname like 'zz\_keyline\_%'`, t.OID)
	if err != nil {
		return nil, failed("read the table's triggers", err)
	}
	var called, comment, settings string
	var one trigger
	_, err = pgx.ForEachRow(rows, []any{&called, &one.enabled, &comment}, func() error {
		t.triggers[called] = one
		if called == triggerFill {
			settings = comment
		}
		return nil
	})
	if err != nil {
		return nil, failed("read the table's triggers", err)
	}
	if settings != "" {
		t.settings = &Settings{}
		if err := json.Unmarshal([]byte(settings), t.settings); err != nil {
			return nil, conflict("the comment of the function that %s fills in keys with is none of Keyline's settings any more: %v", triggerFill, err)
		}
	}
	return t, nil
}

// prepared reads the table and what it was prepared with.
func (o *Outbox) prepared(ctx context.Context, q querier, name string) (*table, *statement, error) {
	t, err := o.read(ctx, q, name)
	if err != nil {
		return nil, nil, err
	}
	if t.settings == nil {
		return nil, nil, conflict("%s is not prepared: run `keyline outbox prepare` first", t.name())
	}
	return t, o.statement(t, *t.settings), nil
}

// audit writes who did what, in the transaction that does it.
func (o *Outbox) audit(ctx context.Context, tx pgx.Tx, by By, action string, t *table, detail any) error {
	if by.Actor == "" {
		return invalid("no actor was named for the audit")
	}
	encoded, err := json.Marshal(detail)
	if err != nil {
		return fmt.Errorf("keyline: outbox: write the audit: %w", err)
	}
	_, err = tx.Exec(ctx, `insert into `+o.schema+`.audit (actor, action, target, reason, detail) values ($1, $2, $3, $4, $5::text::jsonb)`,
		by.Actor, action, t.name(), by.Reason, string(encoded))
	return failed("write the audit", err)
}
