package outbox

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"text/template"

	"github.com/jackc/pgx/v5"
)

//go:embed sql/*.sql
var sqlFiles embed.FS

var statements = template.Must(template.ParseFS(sqlFiles, "sql/*.sql"))

// statement is what the SQL files are filled in with: names quoted, expressions as they were given.
type statement struct {
	Keyline, Table, Alias                                    string
	TableLiteral, LockName, LockHint, SettingsLiteral        string
	Path                                                     string
	ID, IDType, Created, KeyColumn, AtColumn                 string
	KeyExpr, EventExpr, Pending, PendingWhere                string
	DoneExprs, DoneTargets, DoneSet                          string
	HasNoKey                                                 string
	TriggerFill, TriggerGuard, TriggerAccept, TriggerForward string
	AllRows                                                  bool
	Recent                                                   int
	From, To                                                 int64
	Row                                                      string
	AsIs, AsDone, Fresh                                      string
	namespace, base                                          string
}

// The triggers. Those before an insert come after those of the table's owner, which may still change the row: triggers run
// in the order of their names.
const (
	triggerFill    = "zz_keyline_1_fill"
	triggerAccept  = "zz_keyline_2_accept"
	triggerForward = "zz_keyline_3_forward"
	triggerGuard   = "zz_keyline_guard"
)

// Fn is the name of one of the functions that belong to the table.
func (s *statement) Fn(part string) string { return ident(s.namespace, s.base+"_keyline_"+part) }

// Append is a call of keyline.append with an event as Fn "event" gives it.
func (s *statement) Append(e string) string {
	return fmt.Sprintf(`%[1]s.append(record_key => %[2]s ->> 'record_key', event_type => %[2]s ->> 'event_type', payload => %[2]s -> 'payload', `+
		`tenant => %[2]s ->> 'tenant', version => (%[2]s ->> 'version')::integer, headers => nullif(%[2]s -> 'headers', 'null'), `+
		`idempotency_key => %[2]s ->> 'idempotency_key', event_id => (%[2]s ->> 'event_id')::uuid, occurred_at => (%[2]s ->> 'occurred_at')::timestamptz)`,
		s.Keyline, e)
}

func (s *statement) render(name string) string {
	var out strings.Builder
	if err := statements.ExecuteTemplate(&out, name+".sql", s); err != nil {
		panic(fmt.Sprintf("outbox: %s.sql: %v", name, err)) // a template of ours that is wrong
	}
	return out.String()
}

func ident(parts ...string) string { return pgx.Identifier(parts).Sanitize() }

func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// baseName is what the names of a table's functions begin with: the table's own name where there is room.
func baseName(table string) string {
	const room = 63 - len("_keyline_lock_key")
	if len(table) <= room {
		return table
	}
	sum := sha256.Sum256([]byte(table))
	return strings.ToValidUTF8(table[:room-9], "") + "_" + hex.EncodeToString(sum[:4])
}

// keyPrefix is what the idempotency keys of a table's events begin with.
func keyPrefix(t *table) string { return "outbox:" + t.name() + ":" }

// statement is what the SQL files are filled in with for a table with these settings.
func (o *Outbox) statement(t *table, s Settings) *statement {
	alias := ident(t.Name)
	st := &statement{
		Keyline: o.schema, Table: ident(t.Schema, t.Name), Alias: alias, namespace: t.Schema, base: baseName(t.Name),
		TableLiteral: literal(ident(t.Schema, t.Name)), LockName: literal("keyline outbox " + t.name()),
		SettingsLiteral: literal(s.encode()), Path: "pg_catalog, " + ident(t.Schema) + ", pg_temp",
		ID: ident(s.ID), Created: ident(s.Created), KeyColumn: ident(s.KeyColumn), AtColumn: ident(s.AtColumn),
		KeyExpr: "coalesce((" + s.Key + "\n)::text, '')", Pending: s.Pending, PendingWhere: "(" + s.Pending + "\n)",
		TriggerFill: triggerFill, TriggerAccept: triggerAccept, TriggerForward: triggerForward, TriggerGuard: triggerGuard,
		HasNoKey: "true",
	}
	st.LockHint = literal("Begin the transaction with: select " + st.Fn("lock") + "()")
	recordKey := st.KeyExpr
	if t.column(s.KeyColumn) != nil {
		recordKey = "coalesce(" + alias + "." + st.KeyColumn + ", " + st.KeyExpr + ")"
		st.HasNoKey = alias + "." + st.KeyColumn + " is null"
	}
	var eventID, created, occurred string
	if c := t.column(s.ID); c != nil {
		st.IDType = c.Type
		if c.Type == "uuid" {
			eventID = ", 'event_id', " + alias + "." + st.ID
		}
	}
	// As text that depends on no setting of the session.
	created = alias + "." + st.Created
	if c := t.column(s.Created); c != nil && (strings.HasPrefix(c.Type, "timestamp") || c.Type == "date") {
		created = "extract(epoch from " + created + ")"
		if c.Type == timestamptz {
			occurred = alias + "." + st.Created
		}
	}
	if s.OccurredAt != "" {
		occurred = "(" + s.OccurredAt + "\n)"
	}
	prefix := literal(keyPrefix(t))
	idempotency := fmt.Sprintf(`(select case when octet_length(k) <= 512 then k else %s || encode(sha256(convert_to(k, 'UTF8')), 'hex') end `+
		`from (select %s || %s.%s::text || ':' || coalesce(%s::text, '')) as long(k))`, prefix, prefix, alias, st.ID, created)
	st.EventExpr = "jsonb_build_object('record_key', " + recordKey + ", 'event_type', (" + s.Type + "\n)::text, 'payload', (" + s.Payload + "\n)::jsonb" +
		optional("tenant", s.Tenant, "text") + optional("version", s.Version, "integer") + optional("headers", s.Headers, "jsonb") +
		optional("occurred_at", occurred, timestamptz) + eventID + ", 'idempotency_key', " + idempotency + ")"
	st.Row = t.row(s)
	st.AsIs, st.AsDone, st.Fresh = t.rows(s, alias)
	list, _ := s.assignments()
	var exprs, targets, sets []string
	for _, a := range list {
		exprs = append(exprs, "("+a.expr+"\n)")
		targets = append(targets, "new."+ident(a.column))
		sets = append(sets, ident(a.column)+" = ("+a.expr+"\n)")
	}
	st.DoneExprs, st.DoneTargets, st.DoneSet = strings.Join(exprs, ", "), strings.Join(targets, ", "), strings.Join(sets, ", ")
	return st
}

// encode writes the settings as the table keeps them.
func (s Settings) encode() string {
	var out strings.Builder
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false) // people read it too
	if err := e.Encode(s); err != nil {
		panic(fmt.Sprintf("outbox: %v", err)) // strings alone
	}
	return strings.TrimSpace(out.String())
}

const timestamptz = "timestamp with time zone"

func optional(name, expr, as string) string {
	if expr == "" {
		return ""
	}
	return ", '" + name + "', (" + expr + "\n)::" + as
}

// row is a row as the functions read it: of the columns that the settings name, or all where one names the row as a whole. Postgres then lets
// its owner drop the others.
func (t *table) row(s Settings) string {
	used := map[string]bool{s.ID: true, s.Created: true, s.KeyColumn: true}
	for _, expr := range s.expressions() {
		if mentions(expr, t.Name) {
			return "(keyline_row).*"
		}
		for _, c := range t.Columns {
			used[c.Name] = used[c.Name] || mentions(expr, c.Name)
		}
	}
	var list []string
	for _, c := range t.Columns {
		if used[c.Name] {
			list = append(list, "(keyline_row)."+ident(c.Name)+" as "+ident(c.Name))
		}
	}
	return strings.Join(list, ", ")
}

// rows are the columns of a row as it is, as it is once it is marked done, and as the columns' defaults make it; of defaults those
// alone that pending reads, and none that takes a number from a sequence.
func (t *table) rows(s Settings, alias string) (asIs, asDone, fresh string) {
	assigned := map[string]string{}
	list, _ := s.assignments()
	for _, a := range list {
		assigned[a.column] = a.expr
	}
	var is, done, made []string
	for _, c := range t.Columns {
		name := ident(c.Name)
		is = append(is, alias+"."+name)
		if expr, set := assigned[c.Name]; set {
			done = append(done, "("+expr+"\n)::"+c.Type+" as "+name)
		} else {
			done = append(done, alias+"."+name)
		}
		value := "null"
		if c.Default != "" && mentions(s.Pending, c.Name) && !strings.Contains(c.Default, "nextval(") {
			value = "(" + c.Default + ")"
		}
		made = append(made, value+"::"+c.Type+" as "+name)
	}
	return strings.Join(is, ", "), strings.Join(done, ", "), strings.Join(made, ", ")
}
