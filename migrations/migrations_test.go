package migrations_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/internal/testdb"
	"github.com/keylinehq/keyline/migrations"
)

func exec(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func scalar[T any](t *testing.T, conn *pgx.Conn, sql string, args ...any) (v T) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// latest is this binary's version.
func latest(t *testing.T, conn *pgx.Conn) int32 {
	t.Helper()
	s, err := migrations.Read(t.Context(), conn, migrations.DefaultSchema)
	if err != nil {
		t.Fatal(err)
	}
	if s.Latest < 1 {
		t.Fatalf("the binary knows version %d", s.Latest)
	}
	return s.Latest
}

func TestManyMigratorsAtOnceAreSafe(t *testing.T) {
	t.Parallel()
	db := testdb.NewEmpty(t)
	conns := make([]*pgx.Conn, 8)
	for i := range conns {
		conns[i] = db.Connect()
	}
	errs := make([]error, len(conns))
	begin := make(chan struct{})
	var running sync.WaitGroup
	for i, conn := range conns {
		running.Go(func() {
			<-begin
			_, _, errs[i] = migrations.Up(t.Context(), conn, migrations.DefaultSchema)
		})
	}
	close(begin)
	running.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	equal(t, dump(t, conns[0], migrations.DefaultSchema), golden(t))
	if n := scalar[int](t, conns[0], "select count(*) from keyline.meta"); n != 1 {
		t.Errorf("meta has %d rows", n)
	}
	// A migration of one that died would keep the next one waiting for ever.
	if n := scalar[int](t, conns[0], "select count(*) from pg_locks where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())"); n != 0 {
		t.Errorf("%d advisory locks are left", n)
	}
}

func TestUpTwiceChangesNothing(t *testing.T) {
	t.Parallel()
	conn := testdb.NewEmpty(t).Connect()
	from, to := up(t, conn, migrations.DefaultSchema)
	if from != 0 || to != latest(t, conn) {
		t.Errorf("went from %d to %d", from, to)
	}
	exec(t, conn, "select keyline.append('r', 'a.b', '{}')")
	if from, to = up(t, conn, migrations.DefaultSchema); from != to || to != latest(t, conn) {
		t.Errorf("the second time it went from %d to %d", from, to)
	}
	equal(t, dump(t, conn, migrations.DefaultSchema), golden(t))
	if n := scalar[int](t, conn, "select count(*) from keyline.events"); n != 1 {
		t.Errorf("%d events are left of 1", n)
	}
}

func TestNewerSchemaIsRefused(t *testing.T) {
	t.Parallel()
	conn := testdb.New(t).Connect()
	newer := latest(t, conn) + 1
	exec(t, conn, "update keyline.schema_version set version = $1", newer)
	exec(t, conn, "update keyline.meta set oldest_binary = $1", newer)
	exec(t, conn, "select keyline.append('r', 'a.b', '{}')")
	before := dump(t, conn, migrations.DefaultSchema)

	_, _, upErr := migrations.Up(t.Context(), conn, migrations.DefaultSchema)
	for what, err := range map[string]error{
		"Up":    upErr,
		"To 0":  migrations.To(t.Context(), conn, migrations.DefaultSchema, 0),
		"Check": migrations.Check(t.Context(), conn, migrations.DefaultSchema),
	} {
		if !errors.Is(err, migrations.ErrNewer) {
			t.Errorf("%s: %v", what, err)
		}
	}
	equal(t, dump(t, conn, migrations.DefaultSchema), before)
	if v := scalar[int32](t, conn, "select version from keyline.schema_version"); v != newer {
		t.Errorf("the version is %d", v)
	}
	if n := scalar[int](t, conn, "select count(*) from keyline.events"); n != 1 {
		t.Errorf("%d events are left of 1", n)
	}
}

func TestDownThenUpGivesTheGoldenSchema(t *testing.T) {
	t.Parallel()
	conn := testdb.New(t).Connect()
	exec(t, conn, "select keyline.append('r', 'a.b', '{}')") // a table with rows goes too
	if err := migrations.To(t.Context(), conn, migrations.DefaultSchema, 0); err != nil {
		t.Fatal(err)
	}
	left := scalar[[]string](t, conn, `
		select coalesce(array_agg(name::text), '{}') from (
			select relname as name from pg_class where relnamespace = 'keyline'::regnamespace and relkind not in ('i', 'I')
			union all select proname from pg_proc where pronamespace = 'keyline'::regnamespace
			union all select typname from pg_type where typnamespace = 'keyline'::regnamespace and typtype in ('e', 'd', 'r')) x`)
	if len(left) != 1 || left[0] != "schema_version" {
		t.Errorf("left after down: %v", left)
	}
	if from, _ := up(t, conn, migrations.DefaultSchema); from != 0 {
		t.Errorf("went up from %d", from)
	}
	equal(t, dump(t, conn, migrations.DefaultSchema), golden(t))
}

// Promise: workers with the role that was made before a migration can claim after it, and a role of that name which
// another database has made gets nothing.
func TestAWorkersRoleMayClaimAfterTheMigration(t *testing.T) {
	t.Parallel()
	conn := testdb.New(t).Connect()
	const schema, allowed = "granted", "select has_sequence_privilege('granted_worker', 'granted.claim_front', 'update')"
	exec(t, conn, "create role granted_worker")
	defer exec(t, conn, "drop role granted_worker")
	defer exec(t, conn, "drop owned by granted_worker")
	for _, made := range []bool{false, true} {
		if err := migrations.To(t.Context(), conn, schema, 1); err != nil {
			t.Fatal(err)
		}
		if made {
			exec(t, conn, "grant usage on granted.tokens to granted_worker")
		}
		up(t, conn, schema)
		if got := scalar[bool](t, conn, allowed); got != made {
			t.Errorf("the role was made for it: %v; it may claim: %v", made, got)
		}
	}
}

// A schema may be shared, and others may have built on Keyline's tables: the way down drops all that it finds, with what depends on it.
func TestTheWayDownTakesNothingThatIsNotKeylines(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ make, named, drop string }{
		{"create table public.mine (i integer)", "table mine", "drop table public.mine"},
		{"create view public.mine as select 1 as one", "view mine", "drop view public.mine"},
		{"create materialized view public.mine as select 1 as one", "materialized view mine", "drop materialized view public.mine"},
		{"create sequence public.mine", "sequence mine", "drop sequence public.mine"},
		{"create function public.mine() returns integer language sql return 1", "function mine()", "drop function public.mine()"},
		{"create type public.mine as enum ('a')", "type mine", "drop type public.mine"},
		{"create type public.mine as (i integer)", "composite type mine", "drop type public.mine"},
		{"create schema apart; create view apart.mine as select id from public.events", "view apart.mine", "drop schema apart cascade"},
		{"create schema apart; create table apart.mine (event uuid references public.events (id))", "table apart.mine", "drop schema apart cascade"},
		{"create schema apart; create table apart.mine (row public.events)", "column row of table apart.mine", "drop schema apart cascade"},
		{"create schema apart; create function apart.mine() returns bigint language sql begin atomic select count(*) from public.events; end",
			"function apart.mine()", "drop schema apart cascade"},
		{`create schema apart; create table apart.mine (i integer);
			create function apart.forward() returns trigger language plpgsql as 'begin perform public.append(record_key => new.i::text, event_type => $$t$$, payload => $${}$$); return null; end';
			create trigger zz_keyline_3_forward after insert on apart.mine for each row execute function apart.forward()`,
			"trigger zz_keyline_3_forward on table apart.mine, which appends", "drop schema apart cascade"},
	} {
		t.Run(tc.make, func(t *testing.T) {
			t.Parallel()
			conn := testdb.NewEmpty(t).Connect()
			up(t, conn, "public")
			before := dump(t, conn, "public")
			exec(t, conn, tc.make)
			err := migrations.To(t.Context(), conn, "public", 0)
			if !errors.Is(err, migrations.ErrInUse) || !strings.Contains(err.Error(), tc.named) {
				t.Fatalf("the way down says %v, which does not name %q", err, tc.named)
			}
			exec(t, conn, tc.drop)
			equal(t, dump(t, conn, "public"), before)
			if err := migrations.To(t.Context(), conn, "public", 0); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestTwoSchemasLiveInOneDatabase(t *testing.T) {
	t.Parallel()
	const other = "second_home"
	conn := testdb.New(t).Connect()
	up(t, conn, other)
	equal(t, dump(t, conn, other), golden(t))

	// What one does the other does not see.
	exec(t, conn, "select keyline.append('r', 'a.b', '{}'), keyline.append('r', 'a.b', '{}')")
	exec(t, conn, "select second_home.append('r', 'a.b', '{}')")
	for schema, want := range map[string]int{migrations.DefaultSchema: 2, other: 1} {
		if n := scalar[int](t, conn, "select count(*) from "+schema+".events"); n != want {
			t.Errorf("%s has %d events of %d", schema, n, want)
		}
	}
	for _, key := range []string{"arm_key", "seat_key", "barrier_key", "channel"} {
		if scalar[bool](t, conn, "select keyline."+key+"()::text = second_home."+key+"()::text") {
			t.Errorf("both have the same %s", key)
		}
	}
	if err := migrations.To(t.Context(), conn, other, 0); err != nil {
		t.Fatal(err)
	}
	equal(t, dump(t, conn, migrations.DefaultSchema), golden(t))
	if n := scalar[int](t, conn, "select count(*) from keyline.events"); n != 2 {
		t.Errorf("removing the other schema left %d events of 2", n)
	}
}

// Nothing in the functions may fall back on the search path or on the default name.
func TestSchemaOfAnotherNameNeverMentionsTheDefaultOne(t *testing.T) {
	t.Parallel()
	conn := testdb.New(t, testdb.WithSchema("elsewhere")).Connect()
	text, err := testdb.DumpSchema(t.Context(), conn, "elsewhere")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		if strings.Contains(line, migrations.DefaultSchema+".") && !strings.Contains(line, "'keyline.") {
			t.Errorf("the default schema is named: %s", line)
		}
	}
}

func TestCheckSaysWhatToRun(t *testing.T) {
	t.Parallel()
	conn := testdb.NewEmpty(t).Connect()
	check := func() error { return migrations.Check(t.Context(), conn, migrations.DefaultSchema) }
	says := func(when string, err error, words ...string) {
		t.Helper()
		for _, w := range words {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v does not say %q", when, err, w)
			}
		}
	}
	says("nothing installed", check(), "not installed", "keyline migrate up", "keyline")
	if scalar[bool](t, conn, "select exists (select from pg_namespace where nspname = 'keyline')") {
		t.Error("to check has created the schema")
	}
	up(t, conn, migrations.DefaultSchema)
	if err := check(); err != nil {
		t.Errorf("up to date: %v", err)
	}
	if err := migrations.To(t.Context(), conn, migrations.DefaultSchema, 0); err != nil {
		t.Fatal(err)
	}
	says("removed", check(), "not installed", "keyline migrate up")
}

func TestUnusableSchemaNamesAreRefused(t *testing.T) {
	t.Parallel()
	conn := testdb.NewEmpty(t).Connect()
	for _, name := range []string{"", "Keyline", "a-b", "1st", `a"b`, "a b", "a;b", "a\nb", "key.line", strings.Repeat("a", 41)} {
		if err := migrations.CheckSchemaName(name); err == nil {
			t.Errorf("%q is taken", name)
		}
		if _, _, err := migrations.Up(t.Context(), conn, name); err == nil {
			t.Errorf("Up takes %q", name)
		}
		if _, err := migrations.SQL(name, 0); err == nil {
			t.Errorf("SQL takes %q", name)
		}
	}
	long := strings.Repeat("a", 40)
	up(t, conn, long)
	exec(t, conn, "select "+long+".append('r', 'a.b', '{}')")
}

// Promise: a schema name that is taken needs no quoting, and one that would need it is refused by an error that says why.
func TestReservedWordsAreNoSchemaNames(t *testing.T) {
	t.Parallel()
	conn := testdb.NewEmpty(t).Connect()
	words := scalar[[]string](t, conn, "select array_agg(word order by word) from pg_get_keywords() where word ~ '^[a-z_]+$'")
	taken := 0
	for _, word := range append(words, "pg_keyline", "pg_") {
		err := migrations.CheckSchemaName(word)
		if err == nil {
			taken++
		} else if !strings.Contains(err.Error(), word) || !strings.Contains(err.Error(), "reserve") {
			t.Errorf("%s: %v", word, err)
		}
		_, plain := conn.Exec(t.Context(), fmt.Sprintf(`create schema %[1]s create table t (n integer);
			create function %[1]s.f() returns bigint language sql as 'select count(*) from %[1]s.t'; select %[1]s.f() from %[1]s.t`, word))
		if (err == nil) != (plain == nil) {
			t.Errorf("%s: refused: %v, the server: %v", word, err, plain)
		}
	}
	if taken < 100 {
		t.Errorf("of the words only %d are taken", taken)
	}
}

// Promise: where something of the application's has a name that Keyline needs, nothing at all is written.
func TestUpIntoASchemaWithTablesOfTheseNamesWritesNothing(t *testing.T) {
	t.Parallel()
	for name, own := range map[string]string{
		"a table":    "create table crm.meta (k text)",
		"a view":     "create view crm.events as select 1 as n",
		"a sequence": "create sequence crm.tokens",
		"a function": "create function crm.append(text) returns text language sql as 'select $1'",
		"a type":     "create type crm.records as (n integer)",
		// What an attempt of before has left.
		"a table, beside an empty version": "create table crm.meta (k text); create table crm.schema_version (version int4 not null); insert into crm.schema_version values (0)",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := testdb.NewEmpty(t).Connect()
			exec(t, conn, "create schema crm; create table crm.activities (id integer); "+own)
			const all = `select array_agg(c.relname order by c.relname) from pg_class c where c.relnamespace = 'crm'::regnamespace`
			before := scalar[[]string](t, conn, all)
			_, _, err := migrations.Up(t.Context(), conn, "crm")
			if !errors.Is(err, migrations.ErrTaken) || !strings.Contains(err.Error(), "crm.") || strings.Contains(err.Error(), "activities") {
				t.Errorf("%v", err)
			}
			if after := scalar[[]string](t, conn, all); !slices.Equal(after, before) {
				t.Errorf("there is %v, there was %v", after, before)
			}
		})
	}
	conn := testdb.NewEmpty(t).Connect()
	exec(t, conn, "create schema crm; create table crm.activities (id integer)")
	up(t, conn, "crm")
	up(t, conn, "crm")
}

// For those who let nothing but themselves change a schema.
func TestSQLRunByHandGivesTheGoldenSchema(t *testing.T) {
	t.Parallel()
	conn := testdb.NewEmpty(t).Connect()
	sql, err := migrations.SQL(migrations.DefaultSchema, 0)
	if err != nil {
		t.Fatal(err)
	}
	exec(t, conn, sql)
	if err := migrations.Check(t.Context(), conn, migrations.DefaultSchema); err != nil {
		t.Errorf("after the SQL was run by hand: %v", err)
	}
	equal(t, dump(t, conn, migrations.DefaultSchema), golden(t))
	if from, to := up(t, conn, migrations.DefaultSchema); from != to {
		t.Errorf("went from %d to %d", from, to)
	}
	none, err := migrations.SQL(migrations.DefaultSchema, latest(t, conn))
	if err != nil || strings.TrimSpace(none) != "" {
		t.Errorf("above the latest version there is %q, %v", none, err)
	}
}
