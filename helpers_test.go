package keyline_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	_ "github.com/lib/pq"              // the driver "postgres"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
)

func newClient(t testing.TB, cfg keyline.ClientConfig) *keyline.Client {
	t.Helper()
	c, err := keyline.NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func ptr[T any](v T) *T { return &v }

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// exec runs SQL that has to work.
func exec(t testing.TB, db interface {
	Query(context.Context, string, ...any) (pgx.Rows, error)
}, text string, args ...any) {
	t.Helper()
	rows, err := db.Query(t.Context(), text, args...)
	if err == nil {
		rows.Close()
		err = rows.Err()
	}
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

func scalar[T any](t testing.TB, db keyline.PGX, text string, args ...any) T {
	t.Helper()
	rows, err := db.Query(t.Context(), text, args...)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	v, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}

// toBeGiven is how long an act that nobody applies is waited for: long enough for it to be given on a crowded machine.
const toBeGiven = 2 * time.Second

// wantError checks class and code.
func wantError(t testing.TB, err error, class error, code string) *keyline.Error {
	t.Helper()
	var e *keyline.Error
	if !errors.As(err, &e) {
		t.Fatalf("error %v (%T), want a *keyline.Error with code %s", err, err, code)
	}
	if e.Code != code || class != nil && !errors.Is(err, class) {
		t.Fatalf("error %v has code %q, want %q in the class %v", err, e.Code, code, class)
	}
	return e
}

// door is one way into the database: a driver and what it is given.
type door struct {
	name       string
	append     func(context.Context, *keyline.Client, keyline.NewEvent) (keyline.Appended, error)
	appendMany func(context.Context, *keyline.Client, []keyline.NewEvent) ([]keyline.Appended, error)
	// commit ends the transaction, where there is one.
	commit func(context.Context) error
}

func pgxDoor(name string, db keyline.PGX, commit func(context.Context) error) door {
	return door{name,
		func(ctx context.Context, c *keyline.Client, e keyline.NewEvent) (keyline.Appended, error) {
			return c.Append(ctx, db, e)
		},
		func(ctx context.Context, c *keyline.Client, e []keyline.NewEvent) ([]keyline.Appended, error) {
			return c.AppendMany(ctx, db, e)
		}, commit}
}

func sqlDoor(name string, db keyline.SQL, commit func(context.Context) error) door {
	return door{name,
		func(ctx context.Context, c *keyline.Client, e keyline.NewEvent) (keyline.Appended, error) {
			return c.AppendSQL(ctx, db, e)
		},
		func(ctx context.Context, c *keyline.Client, e []keyline.NewEvent) ([]keyline.Appended, error) {
			return c.AppendManySQL(ctx, db, e)
		}, commit}
}

func none(context.Context) error { return nil }

func openSQL(t testing.TB, driver, url string) *sql.DB {
	t.Helper()
	db := must(sql.Open(driver, url))(t)
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// doors opens every way in.
func doors(t *testing.T, db *testdb.DB) []door {
	t.Helper()
	ctx := t.Context()
	pool := db.Pool()
	conn := must(pool.Acquire(ctx))(t)
	t.Cleanup(conn.Release)
	tx := must(db.Connect().Begin(ctx))(t)
	simple := db.NewPool(func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol })
	execMode := db.NewPool(func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec })
	list := []door{
		pgxDoor("pgx.Tx", tx, tx.Commit), pgxDoor("pgx.Conn", db.Connect(), none), pgxDoor("pgxpool.Pool", pool, none),
		pgxDoor("pgxpool.Conn", conn, none), pgxDoor("simple protocol", simple, none), pgxDoor("exec mode", execMode, none),
	}
	for _, driver := range []string{"postgres", "pgx"} { // lib/pq's name, and pgx's stdlib
		handle := openSQL(t, driver, db.URL)
		sqlConn := must(handle.Conn(ctx))(t)
		t.Cleanup(func() { _ = sqlConn.Close() }) // before the handle; closing it twice is an error
		sqlTx := must(handle.BeginTx(ctx, nil))(t)
		list = append(list, sqlDoor(driver+" sql.DB", handle, none), sqlDoor(driver+" sql.Conn", sqlConn, none),
			sqlDoor(driver+" sql.Tx", sqlTx, func(context.Context) error { return sqlTx.Commit() }))
	}
	return list
}
