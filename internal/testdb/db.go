package testdb

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/migrations"
)

// EnvKeep is the environment variable that, set to anything, keeps the databases of failed tests, whose
// connection strings are logged. On the shared server they go with it; with
// DATABASE_URL they stay.
const EnvKeep = "KEYLINE_TEST_KEEP"

// DB is a database that belongs to one test.
type DB struct {
	// URL is its connection string, as good for lib/pq and psql as for pgx.
	URL string
	// Name is the database's name.
	Name string
	// Schema is the name of the schema that Keyline is installed in; empty for
	// an empty database.
	Schema string

	t       testing.TB
	cluster *cluster
	pool    *pgxpool.Pool
}

// Option says how a database differs from the usual.
type Option func(*options)

type options struct{ schema string }

// WithSchema installs Keyline in a schema of another name than the default.
func WithSchema(name string) Option { return func(o *options) { o.schema = name } }

// New makes a database with Keyline's schema at its latest version. It is
// dropped when the test ends.
func New(t testing.TB, opts ...Option) *DB {
	t.Helper()
	o := options{schema: migrations.DefaultSchema}
	for _, opt := range opts {
		opt(&o)
	}
	s := keylineSchema(o.schema)
	return create(t, &s)
}

// NewEmpty makes a database with nothing in it.
func NewEmpty(t testing.TB) *DB {
	t.Helper()
	return create(t, nil)
}

func create(t testing.TB, s *schema) *DB {
	t.Helper()
	c, err := theCluster()
	if err != nil {
		t.Fatalf("testdb: no server to test on: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), adminTimeout)
	defer cancel()
	db := &DB{t: t, cluster: c}
	template := "template0"
	if s != nil {
		db.Schema = s.name
		if template, err = c.template(ctx, *s); err != nil {
			t.Fatalf("testdb: %v", err)
		}
	}
	random := uuid.New()
	db.Name = fmt.Sprintf("keyline_test_%d_%x", os.Getpid(), random[:6])
	if db.URL, err = withDatabase(c.admin, db.Name); err != nil {
		t.Fatalf("testdb: %v", err)
	}
	err = c.onAdmin(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "create database "+db.Name+" template "+template)
		return err
	})
	if err != nil {
		t.Fatalf("testdb: create database: %v", err)
	}
	t.Cleanup(db.drop)
	return db
}

func (db *DB) drop() {
	if db.t.Failed() && os.Getenv(EnvKeep) != "" {
		db.t.Logf("testdb: kept %s", db.URL)
		return
	}
	// The test's context is done by now.
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	err := db.cluster.onAdmin(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "drop database if exists "+db.Name+" with (force)")
		return err
	})
	if err != nil {
		db.t.Errorf("testdb: drop database: %v", err)
	}
}

// Pool returns the database's pool, made by the first call and closed when the
// test ends. It is to be called on the test's goroutine.
func (db *DB) Pool() *pgxpool.Pool {
	db.t.Helper()
	if db.pool == nil {
		db.pool = db.NewPool(nil)
	}
	return db.pool
}

// NewPool makes another pool, configured by change (nil: as it is), and closes
// it when the test ends.
func (db *DB) NewPool(change func(*pgxpool.Config)) *pgxpool.Pool {
	db.t.Helper()
	cfg, err := pgxpool.ParseConfig(db.URL)
	if err != nil {
		db.t.Fatalf("testdb: %v", err)
	}
	if !strings.Contains(db.URL, "pool_max_conns") {
		// The default, one per core, makes tests that hold a few connections
		// hang on small machines only.
		cfg.MaxConns = 16
	}
	if change != nil {
		change(cfg)
	}
	pool, err := pgxpool.NewWithConfig(db.t.Context(), cfg)
	if err != nil {
		db.t.Fatalf("testdb: %v", err)
	}
	db.t.Cleanup(func() { closePool(db.t, pool) })
	return pool
}

// closePool fails the test, rather than hanging it, if somebody still has a
// connection.
func closePool(t testing.TB, pool *pgxpool.Pool) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		pool.Close()
	}()
	timer := clock.Real().NewTimer(15 * time.Second)
	defer timer.Stop()
	select {
	case <-closed:
	case <-timer.C():
		t.Errorf("testdb: %d connections of the pool were not given back", pool.Stat().AcquiredConns())
	}
}

// Connect opens a connection of its own and closes it when the test ends.
func (db *DB) Connect() *pgx.Conn {
	db.t.Helper()
	conn, err := pgx.Connect(db.t.Context(), db.URL)
	if err != nil {
		db.t.Fatalf("testdb: %v", err)
	}
	db.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}
