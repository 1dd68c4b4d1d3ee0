package migrations_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/internal/pgdev"
	"github.com/keylinehq/keyline/internal/testdb"
	"github.com/keylinehq/keyline/migrations"
)

// released are the versions that nobody edits any more, with a hash of all their SQL.
var released = map[int]string{
	1: "2073f539948f607db8a7dfa0eb6211d28a4959b67e7f038092a6b39583d20d48",
}

// A database that has run them would differ from a fresh one, and no migration would mend it.
func TestReleasedMigrationsAreNotEdited(t *testing.T) {
	t.Parallel()
	for version, want := range released {
		if got := hashOf(t, version); got != want {
			t.Errorf("version %d has hash %s, was released with %s: a released migration is never edited, what changes is a new one", version, got, want)
		}
	}
}

// hashOf is of a version's migration and the pieces in its folder.
func hashOf(t *testing.T, version int) string {
	t.Helper()
	var paths []string
	for _, pattern := range []string{fmt.Sprintf("%04d_*.sql", version), fmt.Sprintf("v%d/*.sql", version)} {
		found, err := fs.Glob(migrations.FS(), pattern)
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, found...)
	}
	slices.Sort(paths)
	h := sha256.New()
	for _, path := range paths {
		content, err := fs.ReadFile(migrations.FS(), path)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(h, "%q %d\n", path, len(content))
		h.Write(content)
	}
	return hex.EncodeToString(h.Sum(nil))
}

var saysOldest = regexp.MustCompile(`update \{\{\.schema\}\}\.meta set oldest_binary = (\d+);`)

func TestEachMigrationServesTheReleaseBefore(t *testing.T) {
	t.Parallel()
	conn := testdb.NewEmpty(t).Connect()
	oldest := map[int32]int32{}
	for version := int32(1); version <= latest(t, conn); version++ {
		if err := migrations.To(t.Context(), conn, migrations.DefaultSchema, version); err != nil {
			t.Fatal(err)
		}
		oldest[version] = scalar[int32](t, conn, "select oldest_binary from keyline.meta")
		if before := max(version-1, 1); oldest[version] > before {
			t.Errorf("version %d serves binaries from %d on, not those of version %d", version, oldest[version], before)
		}
		if version == 1 {
			continue
		}
		paths, err := fs.Glob(migrations.FS(), fmt.Sprintf("%04d_*.sql", version))
		if err != nil || len(paths) != 1 {
			t.Fatal(paths, err)
		}
		content, err := fs.ReadFile(migrations.FS(), paths[0])
		if err != nil {
			t.Fatal(err)
		}
		up, _, _ := strings.Cut(string(content), "drop below")
		if said := saysOldest.FindStringSubmatch(up); said == nil || said[1] != strconv.Itoa(int(oldest[version])) {
			t.Errorf("%s does not say the oldest binary that it serves (%v, and the database has %d)", paths[0], said, oldest[version])
		}
	}
	for version := latest(t, conn) - 1; version >= 1; version-- {
		if err := migrations.To(t.Context(), conn, migrations.DefaultSchema, version); err != nil {
			t.Fatal(err)
		}
		if got := scalar[int32](t, conn, "select oldest_binary from keyline.meta"); got != oldest[version] {
			t.Errorf("back at version %d the oldest binary is %d, was %d", version, got, oldest[version])
		}
	}
}

// withMore is a release with migrations after this one's.
func withMore(t *testing.T, more ...string) migrations.Release {
	t.Helper()
	files := fstest.MapFS{}
	number := 0
	err := fs.WalkDir(migrations.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if !strings.Contains(path, "/") {
			number++
		}
		content, err := fs.ReadFile(migrations.FS(), path)
		files[path] = &fstest.MapFile{Data: content}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range more {
		number++
		files[fmt.Sprintf("%04d_more.sql", number)] = &fstest.MapFile{Data: []byte(sql)}
	}
	return migrations.ReleaseOf(files).WithPatience(10*time.Millisecond, time.Minute)
}

// serves is what a migration says.
func serves(oldest int32) string {
	return fmt.Sprintf("update {{.schema}}.meta set oldest_binary = %d;", oldest)
}

func TestABinaryWorksOnTheSchemasThatServeIt(t *testing.T) {
	t.Parallel()
	conn := testdb.New(t).Connect()
	mine := latest(t, conn)
	next := withMore(t, serves(mine))
	overnext := withMore(t, serves(mine), serves(mine+1))

	check := func() error { return migrations.Check(t.Context(), conn, migrations.DefaultSchema) }
	if s, err := next.Read(t.Context(), conn); err != nil || s.Fit() == nil || s.Ahead() || !strings.Contains(s.Fit().Error(), "migrate up") {
		t.Errorf("the next release on the older schema: %+v, %v", s, err)
	}
	if _, to, err := next.Up(t.Context(), conn); err != nil || to != mine+1 {
		t.Fatal(to, err)
	}
	if err := check(); err != nil {
		t.Errorf("on the next schema: %v", err)
	}
	s, err := migrations.Read(t.Context(), conn, migrations.DefaultSchema)
	if err != nil || !s.Ahead() || s.Current != mine+1 || s.Oldest != mine {
		t.Errorf("%+v, %v", s, err)
	}
	// What a rolled back deployment does.
	if from, to, err := migrations.Up(t.Context(), conn, migrations.DefaultSchema); err != nil || from != mine+1 || to != mine+1 {
		t.Errorf("up on the next schema: %d, %d, %v", from, to, err)
	}
	if err := migrations.Roles(t.Context(), conn, migrations.DefaultSchema); err != nil {
		t.Errorf("roles on the next schema: %v", err)
	}
	// It does not know what to take back.
	if err := migrations.To(t.Context(), conn, migrations.DefaultSchema, mine); !errors.Is(err, migrations.ErrNewer) {
		t.Errorf("down from the next schema: %v", err)
	}
	if _, to, err := overnext.Up(t.Context(), conn); err != nil || to != mine+2 {
		t.Fatal(to, err)
	}
	if err := check(); !errors.Is(err, migrations.ErrNewer) {
		t.Errorf("on the schema after the next: %v", err)
	}
	if s, err := next.Read(t.Context(), conn); err != nil || !s.Ahead() {
		t.Errorf("the next release on the schema after its own: %+v, %v", s, err)
	}
}

// held is a database in which a transaction has appended to a record and is not over.
func held(t *testing.T) (db *testdb.DB, end func()) {
	t.Helper()
	db = testdb.New(t)
	tx, err := db.Connect().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "select keyline.append('long', 'a.b', '{}')"); err != nil {
		t.Fatal(err)
	}
	return db, func() {
		if err := tx.Commit(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestAMigrationThatWaitsForALockHoldsUpNobody(t *testing.T) {
	t.Parallel()
	db, end := held(t)
	conn, watch, appender := db.Connect(), db.Connect(), db.Connect()
	next := withMore(t, "alter table {{.schema}}.records add column note text;"+serves(latest(t, conn)))
	pid := conn.PgConn().PID()
	done := make(chan error, 1)
	go func() {
		_, _, err := next.Up(context.WithoutCancel(t.Context()), conn)
		done <- err
	}()
	// Far less than the migration's patience; without a lock_timeout it would wait for the long transaction's end.
	exec(t, appender, "set statement_timeout = '20s'")
	for range 3 { // of the migration's tries
		testdb.Eventually(t, func() bool {
			return scalar[bool](t, watch, "select exists (select from pg_locks where pid = $1 and not granted and relation = 'keyline.records'::regclass)", pid)
		}, "the migration waits for its lock")
		exec(t, appender, "select keyline.append('other', 'a.b', '{}')")
	}
	select {
	case err := <-done:
		t.Fatalf("the migration ended under a lock: %v", err)
	default:
	}
	end()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if n := scalar[int](t, watch, "select count(*) from keyline.records where note is null"); n != 2 {
		t.Errorf("%d records after the migration", n)
	}
}

func TestAMigrationThatFindsNoMomentSaysSoAndChangesNothing(t *testing.T) {
	t.Parallel()
	db, end := held(t)
	defer end()
	conn := db.Connect()
	before := dump(t, conn, migrations.DefaultSchema)
	version := latest(t, conn)
	next := withMore(t, "create table {{.schema}}.more (x integer); alter table {{.schema}}.records add column note text;"+serves(version)).
		WithPatience(time.Millisecond, 0)
	if _, _, err := next.Up(t.Context(), conn); !errors.Is(err, migrations.ErrBusy) {
		t.Fatalf("%v", err)
	}
	equal(t, dump(t, conn, migrations.DefaultSchema), before)
	if s, err := migrations.Read(t.Context(), conn, migrations.DefaultSchema); err != nil || s.Current != version {
		t.Errorf("%+v, %v", s, err)
	}
	// Nobody is kept from the next try.
	if n := scalar[int](t, conn, "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"); n != 0 {
		t.Errorf("%d advisory locks are left", n)
	}
}

// The server ends an autovacuum that somebody has waited for as long as its deadlock_timeout, which is longer than a migration waits
// for others. Of what others do, an owner of the schema sees little.
func TestAMigrationEndsAnAutovacuumThatIsInItsWay(t *testing.T) {
	t.Parallel()
	server, err := pgdev.Start(t.Context(), pgdev.Options{Settings: map[string]string{"autovacuum_naptime": "1s"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Stop() })
	connect := func(user string) *pgx.Conn {
		cfg, err := pgx.ParseConfig(server.URL("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		cfg.User = user
		conn, err := pgx.ConnectConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
		return conn
	}
	watch := connect("postgres")
	exec(t, watch, "create role plain login")
	exec(t, watch, "grant create on database postgres to plain")
	conn := connect("plain")
	if _, _, err := migrations.Up(t.Context(), conn, migrations.DefaultSchema); err != nil {
		t.Fatal(err)
	}
	// It takes a tenth of a second for each page.
	exec(t, conn, `alter table keyline.records set (autovacuum_vacuum_cost_delay = 100, autovacuum_vacuum_cost_limit = 1,
		autovacuum_vacuum_threshold = 1, autovacuum_vacuum_scale_factor = 0)`)
	exec(t, conn, "insert into keyline.records (tenant, record_key, head) select '', 'r' || n, 0 from generate_series(1, 200000) n")
	exec(t, conn, "delete from keyline.records")
	testdb.Eventually(t, func() bool {
		return scalar[bool](t, watch, "select exists (select from pg_stat_progress_vacuum where relid = 'keyline.records'::regclass)")
	}, "an autovacuum")
	next := withMore(t, "alter table {{.schema}}.records add column note text;"+serves(latest(t, conn))).WithPatience(10*time.Millisecond, 20*time.Second)
	if _, _, err := next.Up(t.Context(), conn); err != nil {
		t.Error(err)
	}
}

// A fresh installation, one that was upgraded and one that was taken back are alike, also where rows are there.
func TestEachVersionIsTheSameUpAndDown(t *testing.T) {
	t.Parallel()
	conn := testdb.NewEmpty(t).Connect()
	newest := latest(t, conn)
	want := map[int32]string{}
	to := func(version int32) {
		t.Helper()
		if err := migrations.To(t.Context(), conn, migrations.DefaultSchema, version); err != nil {
			t.Fatal(err)
		}
	}
	for version := int32(1); version <= newest; version++ {
		to(version)
		want[version] = dump(t, conn, migrations.DefaultSchema)
		exec(t, conn, "select keyline.append('r', 'a.b', '{}')")
		exec(t, conn, "insert into keyline.checkpoints (record_id, consumer_id, seq, state) values (1, $1, 0, 'ready')", version)
	}
	equal(t, want[newest], golden(t))
	for version := newest - 1; version >= 1; version-- {
		to(version)
		if got := dump(t, conn, migrations.DefaultSchema); got != want[version] {
			t.Errorf("back at version %d: missing %q, added %q", version, without(want[version], got), without(got, want[version]))
		}
	}
	to(newest)
	equal(t, dump(t, conn, migrations.DefaultSchema), golden(t))
	if n := scalar[int32](t, conn, "select count(*) from keyline.events"); n != newest {
		t.Errorf("%d events are left of %d", n, newest)
	}
}
