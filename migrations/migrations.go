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
	"slices"
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
	// ErrNotInstalled is returned where the schema, or what Keyline makes in it, is not there.
	ErrNotInstalled = errors.New("not installed in this database: run `keyline migrate up`")
	// ErrBusy is returned where other transactions held for too long what a migration has to lock.
	// What was migrated before it stays; it can be tried again.
	ErrBusy = errors.New("other transactions keep the migration from its locks: end them (`keyline doctor` names long ones), and try again")
)

var schemaName = regexp.MustCompile(`\A[a-z_][a-z0-9_]{0,39}\z`)

// reserved are the words that cannot name a schema without quotes: those of pg_get_keywords() with catcode R or T, of
// PostgreSQL 15 to 18.
var reserved = strings.Fields(`all analyse analyze and any array as asc asymmetric authorization binary both case cast check
	collate collation column concurrently constraint create cross current_catalog current_date current_role current_schema
	current_time current_timestamp current_user default deferrable desc distinct do else end except false fetch for foreign
	freeze from full grant group having ilike in initially inner intersect into is isnull join lateral leading left like
	limit localtime localtimestamp natural not notnull null offset on only or order outer overlaps placing primary
	references returning right select session_user similar some symmetric system_user table tablesample then to trailing
	true union unique user using variadic verbose when where window with`)

// CheckSchemaName says whether a schema name is usable: lower case letters,
// digits and underscores, at most 40, and no word that SQL reserves, so that it never needs quoting.
func CheckSchemaName(schema string) error {
	switch {
	case !schemaName.MatchString(schema):
		return fmt.Errorf("schema name %q: must match %s", schema, schemaName)
	case slices.Contains(reserved, schema):
		return fmt.Errorf("schema name %q: SQL reserves this word; choose another name", schema)
	case strings.HasPrefix(schema, "pg_"):
		return fmt.Errorf("schema name %q: PostgreSQL reserves names that begin with pg_; choose another", schema)
	}
	return nil
}

// Up brings the schema to this binary's version and returns where it stood before and stands
// now; the same twice where there was nothing to do, or another migrator has done it. A newer schema
// that still serves this binary is left as it is.
//
// It waits up to two minutes for transactions that hold what it has to lock ([ErrBusy]), and makes others wait
// behind it for a moment only; where an autovacuum is in its way, for a little over the server's deadlock_timeout.
func Up(ctx context.Context, conn *pgx.Conn, schema string) (from, to int32, err error) {
	return ours.up(ctx, conn, schema)
}

func (r release) up(ctx context.Context, conn *pgx.Conn, schema string) (from, to int32, err error) {
	list, err := r.open(ctx, conn, schema)
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
	from, err = r.migrate(ctx, conn, list, schema, s.Latest)
	if err != nil {
		return s.Current, s.Current, fmt.Errorf("migrate: %w", err)
	}
	return from, s.Latest, nil
}

// To brings the schema to a version, up or down; 0 removes everything, where nothing else is in the schema or depends on
// it ([ErrInUse]). Only the release that knows the schema's version can. It waits as Up does.
func To(ctx context.Context, conn *pgx.Conn, schema string, version int32) error {
	return ours.to(ctx, conn, schema, version)
}

func (r release) to(ctx context.Context, conn *pgx.Conn, schema string, version int32) error {
	list, err := r.open(ctx, conn, schema)
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
		if err := alone(ctx, conn, list, schema); err != nil {
			return err
		}
	}
	if _, err := r.migrate(ctx, conn, list, schema, version); err != nil {
		return fmt.Errorf("migrate to %d: %w", version, err)
	}
	return nil
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

// versionName is the table that has the version.
const versionName = "schema_version"

func versionTable(schema string) string { return schema + "." + versionName }

// load loads the migrations. Each begins with a short lock_timeout, also where somebody runs the printed SQL.
func (r release) load(schema string) ([]*migrate.Migration, error) {
	if err := CheckSchemaName(schema); err != nil {
		return nil, err
	}
	m := &migrate.Migrator{Data: map[string]any{"schema": schema}}
	if err := m.LoadMigrations(r.files); err != nil {
		return nil, fmt.Errorf("load migrations: %w", err)
	}
	hurry(m.Migrations, 0, r.lockTimeout)
	return m.Migrations, nil
}

// open loads the migrations, and makes the schema where there is none.
func (r release) open(ctx context.Context, conn *pgx.Conn, schema string) ([]*migrate.Migration, error) {
	list, err := r.load(schema)
	if err != nil {
		return nil, err
	}
	if err := free(ctx, conn, list, schema); err != nil {
		return nil, err
	}
	if err := message(ctx, conn, createSchema(schema)); err != nil {
		return nil, fmt.Errorf("create schema: %w", err)
	}
	return list, nil
}
