// Package migrations holds Keyline's schema as numbered SQL and brings a
// database to it.
//
// The schema's name is configurable; it goes into the SQL as template data.
// Two migrators at once are safe: an advisory lock lets one run after the other.
//
// # Two releases on one schema
//
// A schema's version is the number of its last migration, a binary's the number
// of the last migration that it carries. The schema is migrated first, while workers of the release
// before go on, and it is not migrated back when the binaries are rolled back. So each migration
// says how old a binary may be that it still serves, in meta.oldest_binary, and [Check] reads what
// it says: a binary works on its own version and on newer ones that still serve it.
// It refuses an older schema, and one that no longer serves it ([ErrNewer]).
//
// # How to write a migration
//
//   - A released migration and its pieces are never edited; TestReleasedMigrationsAreNotEdited holds their hashes.
//   - It says `update meta set oldest_binary = N`, where N is at least the version before its own; its
//     down half sets back what was there.
//   - It only adds: columns that are nullable or have a constant default (neither rewrites the table), tables, indexes,
//     functions with a new signature beside the old one. What the release before calls or reads stays as it was, also in
//     what it does; what that one does not call any more goes one migration later at the earliest.
//   - No constraint refuses what the release before writes.
//   - The new release must be right beside rows that the release before wrote: what it left
//     null or at its default means "not known", and is read in the careful direction.
//   - It locks hot tables (records, events, mailboxes, checkpoints) for a moment only, all of them
//     before anything else, and rewrites none of them. Every migration runs with a short lock_timeout: it would queue behind
//     a long transaction otherwise, and all appends behind it. [Up] tries again, within bounds.
package migrations

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/tern/v2/migrate"

	"github.com/keylinehq/keyline/internal/clock"
)

//go:embed 0*.sql v1/*.sql v2/*.sql
var files embed.FS

// FS returns the embedded SQL files.
func FS() fs.FS { return files }

// release is what a binary carries: its migrations, and how patient they are.
type release struct {
	files fs.FS
	// lockTimeout is how long a migration waits for a lock, and everybody else behind it.
	lockTimeout time.Duration
	// pause is how long the others have the tables to themselves between two tries; patience how long it tries.
	pause, patience time.Duration
	clock           clock.Clock
}

// ours is this binary's release.
var ours = release{files: files, lockTimeout: 300 * time.Millisecond, pause: 2 * time.Second, patience: 2 * time.Minute, clock: clock.Real()}

// DefaultSchema is the schema's name where none is configured.
const DefaultSchema = "keyline"

var (
	// ErrNewer is returned where the database's schema is newer than this binary
	// knows and does not serve it any more: it must be worked with by the newer release.
	ErrNewer = errors.New("the database's keyline schema is newer than this binary knows; use the newer release")
	// ErrBusy is returned where other transactions held for too long what a migration has to lock.
	// What was migrated before it stays; it can be tried again.
	ErrBusy = errors.New("other transactions keep the migration from its locks: end them (`keyline doctor` names long ones), and try again")
)

var schemaName = regexp.MustCompile(`\A[a-z_][a-z0-9_]{0,39}\z`)

// CheckSchemaName says whether a schema name is usable: lower case letters,
// digits and underscores, at most 40, so that it never needs quoting.
func CheckSchemaName(schema string) error {
	if !schemaName.MatchString(schema) {
		return fmt.Errorf("schema name %q: must match %s", schema, schemaName)
	}
	return nil
}

// Up brings the schema to this binary's version and returns where it stood before and stands
// now. A newer schema that still serves this binary is left as it is. It waits up to two minutes for transactions
// that hold what it has to lock ([ErrBusy]), without making others wait for more than a moment; where an autovacuum is in its way,
// for a little over the server's deadlock_timeout.
func Up(ctx context.Context, conn *pgx.Conn, schema string) (from, to int32, err error) {
	return ours.up(ctx, conn, schema)
}

func (r release) up(ctx context.Context, conn *pgx.Conn, schema string) (from, to int32, err error) {
	m, err := r.open(ctx, conn, schema)
	if err != nil {
		return 0, 0, err
	}
	s, err := r.read(ctx, conn, schema)
	switch {
	case err != nil:
		return 0, 0, err
	case s.Current > s.Latest:
		return s.Current, s.Current, s.Fit()
	}
	if err := r.migrate(ctx, conn, m, s.Latest); err != nil {
		return s.Current, s.Current, fmt.Errorf("migrate: %w", err)
	}
	return s.Current, s.Latest, nil
}

// To brings the schema to a version, up or down; 0 removes everything, where nothing else is in the schema or depends on
// it ([ErrInUse]). Only the release that knows the schema's version can. It waits as Up does.
func To(ctx context.Context, conn *pgx.Conn, schema string, version int32) error {
	return ours.to(ctx, conn, schema, version)
}

func (r release) to(ctx context.Context, conn *pgx.Conn, schema string, version int32) error {
	m, err := r.open(ctx, conn, schema)
	if err != nil {
		return err
	}
	s, err := r.read(ctx, conn, schema)
	switch {
	case err != nil:
		return err
	case s.Current > s.Latest:
		return fmt.Errorf("version %d, known %d: %w", s.Current, s.Latest, ErrNewer)
	}
	if version == 0 {
		if err := alone(ctx, conn, m.Migrations, schema); err != nil {
			return err
		}
	}
	if err := r.migrate(ctx, conn, m, version); err != nil {
		return fmt.Errorf("migrate to %d: %w", version, err)
	}
	return nil
}

// outwaits is how many tries of one call wait for as long as the server takes to end an autovacuum that is in the way. One that
// is there to prevent a wraparound is not ended: then it was for nothing, and the others have waited behind it.
const outwaits = 5

// migrate tries until nobody holds what it has to lock.
func (r release) migrate(ctx context.Context, conn *pgx.Conn, m *migrate.Migrator, version int32) error {
	timeout, left := r.lockTimeout, outwaits
	for began := r.clock.Mono(); ; {
		err := m.MigrateTo(ctx, version)
		switch {
		case !lockNotAvailable(err):
			return err
		case r.clock.Mono()-began >= r.patience:
			return fmt.Errorf("%w: %w", ErrBusy, err)
		}
		if err := clock.Sleep(ctx, r.clock, r.pause); err != nil {
			return err
		}
		next := r.lockTimeout
		if left > 0 {
			wait, err := vacuumed(ctx, conn, m.Data["schema"])
			if err != nil {
				return err
			}
			if wait > 0 {
				next, left = next+wait, left-1
			}
		}
		hurry(m, timeout, next)
		timeout = next
	}
}

// vacuumed looks whether an autovacuum holds a table of the schema, and returns how long somebody has to wait for it before the
// server ends it; 0: there is none. Whoever waits for less waits for its whole run, which may be hours.
func vacuumed(ctx context.Context, conn *pgx.Conn, schema any) (time.Duration, error) {
	var ms int64
	// The rows of others' sessions show no backend_type to those who own no more than the schema; an autovacuum's has no user.
	err := conn.QueryRow(ctx, `select s.setting::bigint * exists (
		select from pg_catalog.pg_locks l
		join pg_catalog.pg_class c on c.oid = l.relation
		join pg_catalog.pg_stat_activity a on a.pid = l.pid
		where l.database = (select d.oid from pg_catalog.pg_database d where d.datname = current_database())
		  and c.relnamespace = $1::text::regnamespace and l.granted and l.mode = 'ShareUpdateExclusiveLock' and a.usesysid is null)::integer
		from pg_catalog.pg_settings s where s.name = 'deadlock_timeout'`, schema).Scan(&ms)
	if err != nil {
		return 0, fmt.Errorf("look for an autovacuum: %w", err)
	}
	return time.Duration(ms) * time.Millisecond, nil
}

func lockNotAvailable(err error) bool {
	var state interface{ SQLState() string }
	return errors.As(err, &state) && state.SQLState() == "55P03"
}

// SQL returns the migrations' SQL above a version, for those who run it
// themselves. It also keeps the version, so that the database then counts as
// migrated. Each migration is one transaction.
func SQL(schema string, above int32) (string, error) {
	list, err := ours.load(schema)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	table := versionTable(schema)
	if above <= 0 {
		fmt.Fprintf(&out, "create schema if not exists %s;\ncreate table if not exists %s(version int4 not null);\n", schema, table)
		fmt.Fprintf(&out, "insert into %[1]s(version) select 0 where not exists (select from %[1]s);\n", table)
	}
	for _, m := range list {
		if m.Sequence > above {
			fmt.Fprintf(&out, "-- %s\nbegin;\n%s\nupdate %s set version = %d;\ncommit;\n", m.Name, m.UpSQL, table, m.Sequence)
		}
	}
	return out.String(), nil
}

func versionTable(schema string) string { return schema + ".schema_version" }

func (r release) load(schema string) ([]*migrate.Migration, error) {
	if err := CheckSchemaName(schema); err != nil {
		return nil, err
	}
	m := &migrate.Migrator{}
	if err := r.loadInto(m, schema); err != nil {
		return nil, err
	}
	return m.Migrations, nil
}

func (r release) open(ctx context.Context, conn *pgx.Conn, schema string) (*migrate.Migrator, error) {
	if err := CheckSchemaName(schema); err != nil {
		return nil, err
	}
	if err := createSchema(ctx, conn, schema); err != nil {
		return nil, err
	}
	m, err := migrate.NewMigrator(ctx, conn, versionTable(schema))
	if err != nil {
		return nil, fmt.Errorf("open migrator: %w", err)
	}
	if err := r.loadInto(m, schema); err != nil {
		return nil, err
	}
	return m, nil
}

// loadInto loads the migrations. Each begins with a short lock_timeout, also where somebody runs the printed SQL.
func (r release) loadInto(m *migrate.Migrator, schema string) error {
	m.Data = map[string]any{"schema": schema}
	if err := m.LoadMigrations(r.files); err != nil {
		return fmt.Errorf("load migrations: %w", err)
	}
	hurry(m, 0, r.lockTimeout)
	return nil
}

// hurry gives the migrations another lock_timeout than the one that they have; 0: none.
func hurry(m *migrate.Migrator, old, now time.Duration) {
	line := func(d time.Duration) string {
		if d == 0 {
			return ""
		}
		return fmt.Sprintf("set local lock_timeout = %d; -- ms: whoever comes later waits behind this\n", d.Milliseconds())
	}
	for _, one := range m.Migrations {
		one.UpSQL = line(now) + strings.TrimPrefix(one.UpSQL, line(old))
		one.DownSQL = line(now) + strings.TrimPrefix(one.DownSQL, line(old))
	}
}

// createSchema makes the schema that the version table lives in. "if not
// exists" alone is not safe against another session doing the same.
func createSchema(ctx context.Context, conn *pgx.Conn, schema string) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return fmt.Errorf("create schema: %w", err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock(hashtextextended($1, 0))`, "keyline schema "+schema); err != nil {
		return fmt.Errorf("create schema: %w", err)
	}
	if _, err := tx.Exec(ctx, `create schema if not exists `+schema); err != nil {
		return fmt.Errorf("create schema: %w", err)
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("create schema: %w", err)
	}
	return nil
}
