package keyline

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/store/clientsql"
)

// EventType is a registered version of an event type.
type EventType struct {
	// Type and Version name it; Version 0 means 1.
	Type    string
	Version int
	// Schema is the payload's JSON Schema (draft 2020-12 unless it says
	// otherwise; "format" is an annotation). It may not refer to other
	// documents. nil: any payload.
	Schema json.RawMessage
	// Internal types reach only consumers with Internal set. All versions of a
	// type must agree.
	Internal bool
}

type typeVersion struct {
	name    string
	version int
}

// typeSet is the registered types with their compiled schemas; the value is nil
// where a type has none.
type typeSet struct {
	strict bool
	schema map[typeVersion]*jsonschema.Schema
}

func newTypeSet(types []EventType, strict bool) (typeSet, error) {
	set := typeSet{strict: strict, schema: make(map[typeVersion]*jsonschema.Schema, len(types))}
	internal := map[string]bool{}
	for i, t := range types {
		field := fmt.Sprintf("EventTypes[%d]", i)
		key := typeVersion{t.Type, max(t.Version, 1)}
		if err := checkNames(prepared{eventType: key.name, version: key.version}); err != nil {
			err.Field = field + "." + err.Field
			return set, err
		}
		if t.Version < 0 {
			return set, wrong(field+".Version", "is negative")
		}
		if _, twice := set.schema[key]; twice {
			return set, wrong(field, "%s version %d is given twice", key.name, key.version)
		}
		if was, seen := internal[t.Type]; seen && was != t.Internal {
			return set, wrong(field+".Internal", "differs between versions of %s", t.Type)
		}
		internal[t.Type] = t.Internal
		schema, err := compileSchema(t.Schema)
		if err != nil {
			return set, wrong(field+".Schema", "%v", err)
		}
		set.schema[key] = schema
	}
	return set, nil
}

// noLoader refuses references out of a schema: by default they would be read
// from files.
type noLoader struct{}

func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("refers to another document: %s", url)
}

func compileSchema(text json.RawMessage) (*jsonschema.Schema, error) {
	if len(text) == 0 {
		return nil, nil
	}
	if _, err := checkJSON(text); err != nil {
		return nil, err
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	const url = "keyline:payload"
	c := jsonschema.NewCompiler()
	c.UseLoader(noLoader{})
	if err := c.AddResource(url, doc); err != nil {
		return nil, err
	}
	return c.Compile(url)
}

// check says whether an event may have this type, version and payload.
func (s typeSet) check(eventType string, version int, payload json.RawMessage) *Error {
	schema, known := s.schema[typeVersion{eventType, version}]
	if !known && s.strict {
		return invalid(CodeUnknownEventType, "Type", "%s version %d is not registered", eventType, version)
	}
	if schema == nil {
		return nil
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(payload))
	if err != nil {
		return invalid(CodeInvalidPayload, "Payload", "%v", err)
	}
	if err := schema.Validate(value); err != nil {
		return invalid(CodeIncompatiblePayload, "Payload", "does not fit the schema of %s version %d: %s", eventType, version, violation(err))
	}
	return nil
}

// violation says where a payload breaks its schema, and which keyword; the
// library's own text would quote the payload.
func violation(err error) string {
	broken := (*jsonschema.ValidationError)(nil)
	if !errors.As(err, &broken) {
		return "cannot be validated"
	}
	for len(broken.Causes) > 0 {
		broken = broken.Causes[0]
	}
	return fmt.Sprintf("%q at /%s", strings.Join(broken.ErrorKind.KeywordPath(), "/"), strings.Join(broken.InstanceLocation, "/"))
}

// Beginner begins transactions: a *pgx.Conn, *pgxpool.Pool or *pgxpool.Conn.
type Beginner interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// RegisterEventTypes writes the client's event types to the database and sets
// whether the database is strict, as the client is: whether append, from any language, refuses
// what is not registered. Repeating it changes nothing, so that every process
// may call it at its start. Types that are not given stay; a schema that
// differs replaces the one before.
//
// A change of Internal changes which deliveries happen, so it waits for the
// flushes in progress. ErrConflict: one of the types has been claimed by an
// in-process publisher.
func (c *Client) RegisterEventTypes(ctx context.Context, db Beginner) error {
	const op = "register event types"
	if db == nil {
		return noDatabase(op)
	}
	rows := make([]typeRow, len(c.types))
	for i, t := range c.types {
		rows[i] = typeRow{t.Type, max(t.Version, 1), t.Schema, t.Internal}
	}
	text, err := json.Marshal(rows)
	if err != nil {
		return translate(op, err)
	}
	r := registration{sql: c.sql, types: string(text), strict: c.check.types.strict}
	return withOp(op, translate(op, changeRegistry(ctx, db, r.run)))
}

type typeRow struct {
	Type     string          `json:"type"`
	Version  int             `json:"version"`
	Schema   json.RawMessage `json:"schema,omitempty"`
	Internal bool            `json:"internal"`
}

type registration struct {
	sql    *clientsql.Statements
	types  string
	strict bool
}

// difference is what would change.
type difference struct {
	rows, internal, strict bool
}

func (r registration) run(ctx context.Context, tx pgx.Tx) error {
	diff, err := r.difference(ctx, tx)
	if err != nil || diff == (difference{}) {
		return err
	}
	if diff.internal {
		if _, err := tx.Exec(ctx, r.sql.RegistryBarrier); err != nil {
			return err
		}
	}
	// The lock orders this beside an in-process publisher's claim; look again under it.
	if _, err := tx.Exec(ctx, r.sql.LockMeta); err != nil {
		return err
	}
	again, err := r.difference(ctx, tx)
	if err != nil {
		return err
	}
	if again.internal && !diff.internal {
		return errRegistryMoved
	}
	if _, err := tx.Exec(ctx, r.sql.UpsertEventTypes, r.types); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, r.sql.SetStrict, r.strict); err != nil {
		return err
	}
	if again.internal {
		_, err = tx.Exec(ctx, r.sql.RaiseEpoch)
	}
	return err
}

func (r registration) difference(ctx context.Context, tx pgx.Tx) (d difference, err error) {
	if err := tx.QueryRow(ctx, r.sql.Strict).Scan(&d.strict); err != nil {
		return d, err
	}
	d.strict = d.strict != r.strict
	rows, err := tx.Query(ctx, r.sql.EventTypes, r.types)
	if err != nil {
		return d, err
	}
	defer rows.Close()
	for rows.Next() {
		var (
			name                                       string
			known, sameSchema, sameInternal, inProcess bool
		)
		if err := rows.Scan(&name, &known, &sameSchema, &sameInternal, &inProcess); err != nil {
			return d, err
		}
		if inProcess {
			return d, conflict(CodeInProcessType, "Type", "%s is published in process", name)
		}
		d.rows = d.rows || !known || !sameSchema
		d.internal = d.internal || !sameInternal
	}
	return d, rows.Err()
}

// errRegistryMoved: another process changed the registry in between.
var errRegistryMoved = errors.New("the registry changed in between")

// changeRegistry runs f in a transaction, and again where somebody else was in the way.
func changeRegistry(ctx context.Context, db Beginner, f func(context.Context, pgx.Tx) error) error {
	return clientsql.ChangeRegistry(ctx, db, clock.Real(), clock.NewRand(clock.RandomSeed()), inTheWay, func(tx pgx.Tx) error { return f(ctx, tx) })
}

func inTheWay(err error) bool {
	if errors.Is(err, errRegistryMoved) {
		return true
	}
	err = translate("", err)
	return errors.Is(err, &Error{Code: CodeLockTimeout}) || errors.Is(err, &Error{Code: CodeDeadlock}) || errors.Is(err, &Error{Code: CodeSerialization})
}
