package testdb

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/pgdev"
	"github.com/keylinehq/keyline/migrations"
)

func databaseExists(t *testing.T, name string) bool {
	t.Helper()
	c, err := theCluster()
	if err != nil {
		t.Fatal(err)
	}
	var exists bool
	err = c.onAdmin(t.Context(), func(conn *pgx.Conn) error {
		return conn.QueryRow(t.Context(), "select exists (select from pg_database where datname = $1)", name).Scan(&exists)
	})
	if err != nil {
		t.Fatal(err)
	}
	return exists
}

func TestNewBringsTheLatestSchema(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		opts []Option
		want string
	}{{nil, migrations.DefaultSchema}, {[]Option{WithSchema("other")}, "other"}} {
		db := New(t, tc.opts...)
		if db.Schema != tc.want {
			t.Errorf("Schema = %q, want %q", db.Schema, tc.want)
		}
		if err := migrations.Check(t.Context(), db.Connect(), tc.want); err != nil {
			t.Error(err)
		}
	}
}

func TestNewEmptyHasNothing(t *testing.T) {
	t.Parallel()
	db := NewEmpty(t)
	var schemas int
	err := db.Pool().QueryRow(t.Context(),
		`select count(*) from pg_namespace where nspname !~ '^pg_' and nspname not in ('public', 'information_schema')`).Scan(&schemas)
	if err != nil || schemas != 0 || db.Schema != "" {
		t.Errorf("%d schemas, Schema %q, %v", schemas, db.Schema, err)
	}
}

func TestDatabasesAreApart(t *testing.T) {
	t.Parallel()
	a, b := New(t), New(t)
	if a.Name == b.Name {
		t.Fatalf("both are %s", a.Name)
	}
	if _, err := a.Pool().Exec(t.Context(), "create table only_here ()"); err != nil {
		t.Fatal(err)
	}
	var there bool
	if err := b.Pool().QueryRow(t.Context(), "select to_regclass('only_here') is not null").Scan(&there); err != nil || there {
		t.Errorf("what was made in one database is in the other: %v, %v", there, err)
	}
}

func TestTheDatabaseGoesWithItsTestWhoeverIsConnected(t *testing.T) {
	t.Parallel()
	var name string
	var forgotten *pgx.Conn
	t.Run("inner", func(t *testing.T) {
		db := New(t)
		name = db.Name
		db.Pool()
		var err error
		if forgotten, err = pgx.Connect(t.Context(), db.URL); err != nil {
			t.Fatal(err)
		}
		if !databaseExists(t, name) {
			t.Fatalf("%s is not there during its test", name)
		}
	})
	if forgotten == nil {
		t.FailNow()
	}
	defer forgotten.Close(context.WithoutCancel(t.Context()))
	if databaseExists(t, name) {
		t.Errorf("%s is still there", name)
	}
}

// processes are clusters that know as little of each other as those of several
// processes do.
func processes(t *testing.T, n int) []*cluster {
	t.Helper()
	c, err := theCluster()
	if err != nil {
		t.Fatal(err)
	}
	var all []*cluster
	for range n {
		all = append(all, &cluster{admin: c.admin, templates: map[string]string{}})
	}
	return all
}

// testSchema has a name of its own, so that no other run has its template.
func testSchema(t *testing.T, migrate func(context.Context, *pgx.Conn, string) error) schema {
	t.Helper()
	s := schema{
		name:    fmt.Sprintf("s%d", time.Duration(clock.RandomSeed()>>1)),
		files:   fstest.MapFS{"1.sql": {Data: []byte("create table x ()")}},
		migrate: migrate,
	}
	key, err := s.key()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, c := range processes(t, 1) {
			err := c.onAdmin(context.Background(), func(conn *pgx.Conn) error {
				_, err := conn.Exec(context.Background(), "drop database if exists keyline_template_"+key)
				return err
			})
			if err != nil {
				t.Error(err)
			}
		}
	})
	return s
}

func TestTheTemplateIsMadeOnceForAllProcesses(t *testing.T) {
	t.Parallel()
	var migrated atomic.Int32
	s := testSchema(t, func(ctx context.Context, conn *pgx.Conn, name string) error {
		migrated.Add(1)
		_, err := conn.Exec(ctx, "create schema "+name)
		return err
	})
	var wg sync.WaitGroup
	for _, c := range processes(t, 6) {
		for range 3 { // tests of one process
			wg.Go(func() {
				name, err := c.template(t.Context(), s)
				if err != nil || !databaseExists(t, name) {
					t.Errorf("template %q: %v", name, err)
				}
			})
		}
	}
	wg.Wait()
	if n := migrated.Load(); n != 1 {
		t.Errorf("migrated %d times", n)
	}
}

func TestAHalfMadeTemplateIsMadeAgain(t *testing.T) {
	t.Parallel()
	broken := errors.New("killed half-way")
	fail := true
	s := testSchema(t, func(ctx context.Context, conn *pgx.Conn, name string) error {
		// Fails if anything is left of the first try.
		if _, err := conn.Exec(ctx, "create schema "+name); err != nil {
			return err
		}
		if fail {
			return broken
		}
		return nil
	})
	two := processes(t, 2)
	if _, err := two[0].template(t.Context(), s); !errors.Is(err, broken) {
		t.Fatal(err)
	}
	fail = false
	for _, c := range two {
		if _, err := c.template(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTheTemplatesKeyCoversAllThatGoesIntoIt(t *testing.T) {
	base := func() schema {
		return schema{name: "keyline", files: fstest.MapFS{"1.sql": {Data: []byte("a")}, "v1/2.sql": {Data: []byte("b")}}}
	}
	key := func(s schema) string {
		k, err := s.key()
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	first := key(base())
	if again := key(base()); again != first {
		t.Errorf("the key is not stable: %s, then %s", first, again)
	}
	seen := map[string]string{first: "the base"}
	for what, s := range map[string]schema{
		"another schema":    {name: "other", files: base().files},
		"another content":   {name: "keyline", files: fstest.MapFS{"1.sql": {Data: []byte("a")}, "v1/2.sql": {Data: []byte("c")}}},
		"another file name": {name: "keyline", files: fstest.MapFS{"1.sql": {Data: []byte("a")}, "v1/3.sql": {Data: []byte("b")}}},
		"a file more":       {name: "keyline", files: fstest.MapFS{"1.sql": {Data: []byte("a")}, "v1/2.sql": {Data: []byte("b")}, "z": {}}},
		"moved content":     {name: "keyline", files: fstest.MapFS{"1.sql": {Data: []byte("ab")}, "v1/2.sql": {}}},
	} {
		if other, ok := seen[key(s)]; ok {
			t.Errorf("%s has the key of %s", what, other)
		}
		seen[key(s)] = what
	}
}

func TestWithDatabaseReplacesTheNameAlone(t *testing.T) {
	for in, want := range map[string]string{
		"postgres://u:p%40@h:1/old?sslmode=disable": "postgres://u:p%40@h:1/new?sslmode=disable",
		"postgresql://h": "postgresql://h/new",
		"postgres://postgres@/postgres?host=%2Ftmp%2Fx&port=5432": "postgres://postgres@/new?host=%2Ftmp%2Fx&port=5432",
		"host=h dbname=old": "host=h dbname=old dbname=new",
	} {
		got, err := withDatabase(in, "new")
		if err != nil || got != want {
			t.Errorf("%s → %s (%v), want %s", in, got, err, want)
			continue
		}
		cfg, err := pgx.ParseConfig(got)
		if err != nil || cfg.Database != "new" {
			t.Errorf("%s connects to %+v, %v", got, cfg, err)
		}
	}
	if _, err := withDatabase("postgres://%zz", "new"); err == nil {
		t.Error("a malformed URL is taken")
	}
}

// failing is a test that records its failure instead of failing.
type failing struct {
	testing.TB
	said string
}

func (f *failing) Helper() {}
func (f *failing) Fatalf(format string, args ...any) {
	f.said = fmt.Sprintf(format, args...)
	panic(f)
}

func TestEventuallyWaitsAndThenFails(t *testing.T) {
	n := 0
	Eventually(t, func() bool { n++; return n == 4 }, "never")
	if n != 4 {
		t.Errorf("asked %d times", n)
	}
	f := &failing{TB: t}
	func() {
		defer func() { _ = recover() }()
		eventually(f, clock.Real(), time.Millisecond, func() bool { return false }, "record %d to settle", 7)
	}()
	if !strings.Contains(f.said, "in vain: record 7 to settle") {
		t.Errorf("said %q", f.said)
	}
}

func BenchmarkNew(b *testing.B) {
	New(b)
	for b.Loop() {
		db := create(b, ptr(keylineSchema(migrations.DefaultSchema)))
		b.StopTimer()
		db.drop()
		b.StartTimer()
	}
}

func BenchmarkDrop(b *testing.B) {
	New(b)
	for b.Loop() {
		b.StopTimer()
		db := create(b, ptr(keylineSchema(migrations.DefaultSchema)))
		b.StartTimer()
		db.drop()
	}
}

func ptr[T any](v T) *T { return &v }

func TestAServerOfItsOwnTakesACrash(t *testing.T) {
	t.Parallel()
	s := NewServer(t, pgdev.Options{Durable: true})
	s.Kill()
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	shared, err := theCluster()
	if err != nil {
		t.Fatal(err)
	}
	if err := shared.onAdmin(t.Context(), func(conn *pgx.Conn) error { return conn.Ping(t.Context()) }); err != nil {
		t.Errorf("the shared server noticed: %v", err)
	}
}
