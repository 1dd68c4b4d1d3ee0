package keyline

import (
	"context"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// NaturalRow is a row that is known by what it stands for, and not only by an
// id that a sequence gave it.
type NaturalRow struct {
	// Table is where the row lives: pgx.Identifier{"crm", "timeline"}. Required.
	Table pgx.Identifier
	// Key is the row's natural key: exactly the columns of a UNIQUE (or primary
	// key) constraint or index of the table, with their values, none of them
	// null. Without such a constraint nothing is made: the error has SQLSTATE 42P10. Required.
	Key map[string]any
	// Values are the other columns that a new row gets. Take them from the
	// event (its OccurredAt, Delivery.DeterministicID) and not from the moment
	// of the call, so that a redelivery would write the same.
	Values map[string]any
	// Returning are the columns that are handed back, found or new. Required.
	Returning []string
}

// FindOrCreate returns the row of a natural key, and makes it where there is
// none; created says which. It makes a handler's insert safe to repeat: however
// often an event is delivered, also by two workers at once, there is one row.
//
//	id, created, err := keyline.FindOrCreate(ctx, tx, keyline.NaturalRow{
//		Table:     pgx.Identifier{"crm", "timeline"},
//		Key:       map[string]any{"organization": d.Tenant, "activity_id": id, "seq": d.Seq},
//		Values:    map[string]any{"what": d.Type, "at": d.OccurredAt},
//		Returning: []string{"id"},
//	}, pgx.RowTo[int64])
//
// It looks first and inserts only what it did not find, because an insert that
// ends in "on conflict do nothing" has drawn its number from the table's
// sequence by then: a thousand redeliveries would leave a gap of a thousand.
// Callers that race for one key queue on an advisory lock, held to the end of the
// transaction, and look again; the constraint has the last word over those who
// insert in another way. A row that is found is left as it is.
//
// ErrConflict: the transaction cannot see the row that it collides with (above
// READ COMMITTED), or the row comes and goes; run it again. ErrInvalid: Key
// has no columns or a null. Other errors are the table's.
func FindOrCreate[T any](ctx context.Context, tx pgx.Tx, row NaturalRow, scan pgx.RowToFunc[T]) (v T, created bool, err error) {
	const op = "find or create"
	if tx == nil {
		return v, false, noDatabase(op)
	}
	s, err := newNaturalSQL(row)
	if err != nil {
		return v, false, withOp(op, err)
	}
	// Not found after a collision: whoever inserted it has deleted it since.
	for try := range naturalTries {
		if v, err = naturalQuery(ctx, tx, s.find, s.keys, scan); !errors.Is(err, pgx.ErrNoRows) {
			return v, false, translate(op, err)
		}
		if try == 0 {
			if _, err = tx.Exec(ctx, lockNatural, s.name); err != nil {
				return v, false, translate(op, err)
			}
			// The lock's last holder may have committed the row just now, which
			// this new statement sees.
			if v, err = naturalQuery(ctx, tx, s.find, s.keys, scan); !errors.Is(err, pgx.ErrNoRows) {
				return v, false, translate(op, err)
			}
		}
		if v, err = naturalQuery(ctx, tx, s.create, s.values, scan); !errors.Is(err, pgx.ErrNoRows) {
			return v, err == nil, translate(op, err)
		}
	}
	return v, false, withOp(op, conflict(CodeConstraint, "Key", "the row is inserted and deleted by others meanwhile"))
}

const (
	naturalTries = 3
	lockNatural  = "select pg_advisory_xact_lock(hashtextextended($1, 0))"
)

func naturalQuery[T any](ctx context.Context, tx pgx.Tx, text string, args []any, scan pgx.RowToFunc[T]) (T, error) {
	rows, err := tx.Query(ctx, text, args...)
	if err != nil {
		var none T
		return none, err
	}
	return pgx.CollectExactlyOneRow(rows, scan)
}

// naturalSQL are the statements for a NaturalRow. Columns are sorted, so that
// the same call is the same prepared statement.
type naturalSQL struct {
	name         string // what racers lock
	find, create string
	keys, values []any // the arguments of find and of create
}

func newNaturalSQL(row NaturalRow) (*naturalSQL, error) {
	switch {
	case len(row.Table) == 0:
		return nil, wrong("Table", "is empty")
	case len(row.Key) == 0:
		return nil, wrong("Key", "is empty")
	case len(row.Returning) == 0:
		return nil, wrong("Returning", "is empty")
	}
	s := &naturalSQL{}
	var keys, where []string
	for _, name := range slices.Sorted(maps.Keys(row.Key)) {
		if null(row.Key[name]) {
			return nil, wrong("Key", "%s is null, and nulls are never equal", name)
		}
		if _, twice := row.Values[name]; twice {
			return nil, wrong("Values", "%s is in Key already", name)
		}
		s.keys = append(s.keys, row.Key[name])
		keys = append(keys, pgx.Identifier{name}.Sanitize())
		where = append(where, fmt.Sprintf("%s = $%d", keys[len(keys)-1], len(keys)))
	}
	var err error
	if s.name, err = naturalName(row.Table, keys, s.keys); err != nil {
		return nil, wrong("Key", "%v", err)
	}
	columns := slices.Clone(keys)
	s.values = slices.Clone(s.keys)
	for _, name := range slices.Sorted(maps.Keys(row.Values)) {
		columns = append(columns, pgx.Identifier{name}.Sanitize())
		s.values = append(s.values, row.Values[name])
	}
	places := make([]string, len(columns))
	for i := range places {
		places[i] = fmt.Sprintf("$%d", i+1)
	}
	returning := make([]string, len(row.Returning))
	for i, name := range row.Returning {
		returning[i] = pgx.Identifier{name}.Sanitize()
	}
	table, list := row.Table.Sanitize(), strings.Join(returning, ", ")
	s.find = fmt.Sprintf("select %s from %s where %s", list, table, strings.Join(where, " and "))
	s.create = fmt.Sprintf("insert into %s (%s) values (%s) on conflict (%s) do nothing returning %s",
		table, strings.Join(columns, ", "), strings.Join(places, ", "), strings.Join(keys, ", "), list)
	return s, nil
}

// naturalName is one text for one key, in every process. Should two texts name
// one key after all (numbers written differently), a racer burns a sequence
// number; the constraint holds regardless.
func naturalName(table pgx.Identifier, columns []string, values []any) (string, error) {
	values = slices.Clone(values)
	for i, v := range values {
		if at, ok := v.(time.Time); ok {
			values[i] = at.UTC()
		}
	}
	text, err := json.Marshal(append([]any{"keyline natural key", table, columns}, values...))
	return string(text), err
}

// null says whether pgx would send null.
func null(v any) bool {
	if v == nil {
		return true
	}
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Func, reflect.Chan:
		if r.IsNil() {
			return true
		}
	}
	if valuer, ok := v.(driver.Valuer); ok {
		value, err := valuer.Value()
		return err == nil && value == nil
	}
	return false
}
