package keyline_test

import (
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
)

const naturalTable = `create table entries (
	id bigint generated always as identity primary key,
	tenant text not null, seq bigint not null, note text not null default '', at timestamptz,
	unique (tenant, seq))`

type naturalEntry struct {
	ID   int64
	Note string
}

func naturalDB(t *testing.T) *testdb.DB {
	t.Helper()
	db := testdb.NewEmpty(t)
	if _, err := db.Pool().Exec(t.Context(), naturalTable); err != nil {
		t.Fatal(err)
	}
	return db
}

func entryRow(note string) keyline.NaturalRow {
	return keyline.NaturalRow{
		Table: pgx.Identifier{"public", "entries"}, Key: map[string]any{"tenant": "acme", "seq": int64(7)},
		Values: map[string]any{"note": note, "at": time.Unix(1000, 0)}, Returning: []string{"id", "note"},
	}
}

func begin(t *testing.T, db *testdb.DB, options pgx.TxOptions) pgx.Tx {
	t.Helper()
	tx, err := db.Pool().BeginTx(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(t.Context()) })
	return tx
}

func findOrCreate(t *testing.T, db *testdb.DB, note string) (naturalEntry, bool) {
	t.Helper()
	tx := begin(t, db, pgx.TxOptions{})
	e, created, err := keyline.FindOrCreate(t.Context(), tx, entryRow(note), pgx.RowToStructByPos[naturalEntry])
	if err == nil {
		err = tx.Commit(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return e, created
}

// drawn is how many numbers the table's sequence has given away.
func drawn(t *testing.T, db *testdb.DB) (n int64) {
	t.Helper()
	if err := db.Pool().QueryRow(t.Context(), "select case when is_called then last_value else 0 end from entries_id_seq").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// waitForWaiters waits until n sessions of this database wait for a lock.
func waitForWaiters(t *testing.T, db *testdb.DB, n int) {
	t.Helper()
	testdb.Eventually(t, func() bool {
		var waiting int
		if err := db.Pool().QueryRow(t.Context(),
			"select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'").Scan(&waiting); err != nil {
			t.Fatal(err)
		}
		return waiting >= n
	}, "%d sessions to wait for a lock", n)
}

func TestFindOrCreateMakesOneRowAndBurnsNoSequenceNumber(t *testing.T) {
	t.Parallel()
	db := naturalDB(t)
	first, created := findOrCreate(t, db, "first")
	if !created || first != (naturalEntry{1, "first"}) {
		t.Fatalf("%+v, created %v", first, created)
	}
	for range 20 {
		if again, created := findOrCreate(t, db, "second"); created || again != first {
			t.Fatalf("repeated: %+v, created %v; first %+v", again, created, first)
		}
	}
	if n := drawn(t, db); n != 1 {
		t.Errorf("%d sequence numbers were drawn for one row", n)
	}
}

type naturalResult struct {
	entry   naturalEntry
	created bool
	err     error
}

// race starts n transactions that want the row and returns what they got.
func race(t *testing.T, db *testdb.DB, n int) <-chan naturalResult {
	t.Helper()
	results := make(chan naturalResult, n)
	for range n {
		tx := begin(t, db, pgx.TxOptions{})
		go func() {
			var r naturalResult
			r.entry, r.created, r.err = keyline.FindOrCreate(t.Context(), tx, entryRow("racer"), pgx.RowToStructByPos[naturalEntry])
			if r.err == nil {
				r.err = tx.Commit(t.Context())
			}
			results <- r
		}()
	}
	return results
}

func TestFindOrCreateInConcurrentTransactionsMakesOneRowAndBurnsNoSequenceNumber(t *testing.T) {
	t.Parallel()
	db := naturalDB(t)
	const racers = 8
	holder := begin(t, db, pgx.TxOptions{})
	first, created, err := keyline.FindOrCreate(t.Context(), holder, entryRow("holder"), pgx.RowToStructByPos[naturalEntry])
	if err != nil || !created {
		t.Fatalf("created %v, %v", created, err)
	}
	results := race(t, db, racers)
	waitForWaiters(t, db, racers) // all have looked, and found nothing
	if err := holder.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range racers {
		if r := <-results; r.err != nil || r.created || r.entry != first {
			t.Errorf("racer: %+v, want %+v", r, first)
		}
	}
	if n := drawn(t, db); n != 1 {
		t.Errorf("%d sequence numbers were drawn for one row", n)
	}
}

func TestFindOrCreateTakesOverFromOneThatRolledBack(t *testing.T) {
	t.Parallel()
	db := naturalDB(t)
	holder := begin(t, db, pgx.TxOptions{})
	if _, _, err := keyline.FindOrCreate(t.Context(), holder, entryRow("holder"), pgx.RowToStructByPos[naturalEntry]); err != nil {
		t.Fatal(err)
	}
	results := race(t, db, 3)
	waitForWaiters(t, db, 3)
	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	made := 0
	for range 3 {
		r := <-results
		if r.err != nil || r.entry != (naturalEntry{2, "racer"}) {
			t.Errorf("racer: %+v", r)
		}
		if r.created {
			made++
		}
	}
	if made != 1 {
		t.Errorf("%d transactions say that they made the row", made)
	}
}

func TestFindOrCreateYieldsToAnInsertBesideIt(t *testing.T) {
	t.Parallel()
	db := naturalDB(t)
	other := begin(t, db, pgx.TxOptions{})
	if _, err := other.Exec(t.Context(), "insert into entries (tenant, seq, note) values ('acme', 7, 'other')"); err != nil {
		t.Fatal(err)
	}
	results := race(t, db, 1)
	waitForWaiters(t, db, 1)
	if err := other.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := <-results; r.err != nil || r.created || r.entry != (naturalEntry{1, "other"}) {
		t.Errorf("%+v", r)
	}
}

func TestFindOrCreateSaysConflictWhereItCannotSeeTheRow(t *testing.T) {
	t.Parallel()
	db := naturalDB(t)
	blind := begin(t, db, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if _, err := blind.Exec(t.Context(), "select 1 from entries"); err != nil { // takes the snapshot
		t.Fatal(err)
	}
	findOrCreate(t, db, "first")
	_, _, err := keyline.FindOrCreate(t.Context(), blind, entryRow("blind"), pgx.RowToStructByPos[naturalEntry])
	if !errors.Is(err, keyline.ErrConflict) {
		t.Errorf("%v, want ErrConflict", err)
	}
}

func TestFindOrCreateNeedsAUniqueConstraintOnItsKey(t *testing.T) {
	t.Parallel()
	db := naturalDB(t)
	row := entryRow("x")
	row.Key = map[string]any{"tenant": "acme"}
	_, _, err := keyline.FindOrCreate(t.Context(), begin(t, db, pgx.TxOptions{}), row, pgx.RowToStructByPos[naturalEntry])
	var state interface{ SQLState() string }
	if !errors.As(err, &state) || state.SQLState() != "42P10" {
		t.Errorf("%v, want SQLSTATE 42P10", err)
	}
}

func TestFindOrCreateRefusesWhatNamesNoRow(t *testing.T) {
	t.Parallel()
	db := naturalDB(t)
	for name, change := range map[string]func(*keyline.NaturalRow){
		"no table":     func(r *keyline.NaturalRow) { r.Table = nil },
		"no key":       func(r *keyline.NaturalRow) { r.Key = nil },
		"no returning": func(r *keyline.NaturalRow) { r.Returning = nil },
		"null":         func(r *keyline.NaturalRow) { r.Key["seq"] = nil },
		"nil pointer":  func(r *keyline.NaturalRow) { r.Key["seq"] = (*int64)(nil) },
		"null valuer":  func(r *keyline.NaturalRow) { r.Key["seq"] = sql.NullInt64{} },
		"key in value": func(r *keyline.NaturalRow) { r.Values["seq"] = 7 },
	} {
		row := entryRow("x")
		change(&row)
		_, _, err := keyline.FindOrCreate(t.Context(), begin(t, db, pgx.TxOptions{}), row, pgx.RowToStructByPos[naturalEntry])
		if !errors.Is(err, keyline.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	if _, _, err := keyline.FindOrCreate(t.Context(), nil, entryRow("x"), pgx.RowToStructByPos[naturalEntry]); !errors.Is(err, keyline.ErrInvalid) {
		t.Errorf("no transaction: %v", err)
	}
	if n := drawn(t, db); n != 0 {
		t.Errorf("%d sequence numbers were drawn", n)
	}
}

func TestFindOrCreateQuotesItsNames(t *testing.T) {
	t.Parallel()
	db := testdb.NewEmpty(t)
	if _, err := db.Pool().Exec(t.Context(), `create schema "A b"; create table "A b"."select" ("order" text unique, "x""y" int)`); err != nil {
		t.Fatal(err)
	}
	tx := begin(t, db, pgx.TxOptions{})
	n, created, err := keyline.FindOrCreate(t.Context(), tx, keyline.NaturalRow{
		Table: pgx.Identifier{"A b", "select"}, Key: map[string]any{"order": "o'1"}, Values: map[string]any{`x"y`: 3}, Returning: []string{`x"y`},
	}, pgx.RowTo[int])
	if err != nil || !created || n != 3 {
		t.Errorf("%d, %v, %v", n, created, err)
	}
}
