// Package migrations holds Keyline's schema as numbered SQL and brings a
// database to it.
//
// The schema's name is configurable; it goes into the SQL as template data.
// Two migrators at once are safe: an advisory lock lets one run after the other.
package migrations

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/tern/v2/migrate"
)

//go:embed *.sql v1/*.sql
var files embed.FS

// FS returns the embedded SQL files.
func FS() fs.FS { return files }

// DefaultSchema is the schema's name where none is configured.
const DefaultSchema = "keyline"

// ErrNewer is returned where the database's schema is newer than this binary
// knows: it must be worked with by the newer release.
var ErrNewer = errors.New("the database's keyline schema is newer than this binary knows; use the newer release")

var schemaName = regexp.MustCompile(`\A[a-z_][a-z0-9_]{0,39}\z`)

// CheckSchemaName says whether a schema name is usable: lower case letters,
// digits and underscores, at most 40, so that it never needs quoting.
func CheckSchemaName(schema string) error {
	if !schemaName.MatchString(schema) {
		return fmt.Errorf("schema name %q: must match %s", schema, schemaName)
	}
	return nil
}

// Status is how a database stands to this binary.
type Status struct {
	Schema string `json:"schema"`
	// Current is the database's version, 0 where nothing is installed; Latest is this binary's.
	Current int32 `json:"current"`
	Latest  int32 `json:"latest"`
}

// Up brings the schema to this binary's version and returns where it stood before and stands now.
func Up(ctx context.Context, conn *pgx.Conn, schema string) (from, to int32, err error) {
	m, err := open(ctx, conn, schema)
	if err != nil {
		return 0, 0, err
	}
	if from, err = m.GetCurrentVersion(ctx); err != nil {
		return 0, 0, fmt.Errorf("read schema version: %w", err)
	}
	latest := int32(len(m.Migrations))
	if from > latest {
		return from, from, fmt.Errorf("version %d, known %d: %w", from, latest, ErrNewer)
	}
	if err := m.Migrate(ctx); err != nil {
		return from, from, fmt.Errorf("migrate: %w", err)
	}
	return from, latest, nil
}

// To brings the schema to a version, up or down; 0 removes everything.
func To(ctx context.Context, conn *pgx.Conn, schema string, version int32) error {
	m, err := open(ctx, conn, schema)
	if err != nil {
		return err
	}
	if current, err := m.GetCurrentVersion(ctx); err != nil {
		return fmt.Errorf("read schema version: %w", err)
	} else if latest := int32(len(m.Migrations)); current > latest {
		return fmt.Errorf("version %d, known %d: %w", current, latest, ErrNewer)
	}
	if err := m.MigrateTo(ctx, version); err != nil {
		return fmt.Errorf("migrate to %d: %w", version, err)
	}
	return nil
}

// Read returns how the database stands, without changing it.
func Read(ctx context.Context, conn *pgx.Conn, schema string) (Status, error) {
	list, err := load(schema)
	if err != nil {
		return Status{}, err
	}
	s := Status{Schema: schema, Latest: int32(len(list))}
	var exists bool
	if err := conn.QueryRow(ctx, `select to_regclass($1) is not null`, versionTable(schema)).Scan(&exists); err != nil {
		return s, fmt.Errorf("read schema version: %w", err)
	}
	if !exists {
		return s, nil
	}
	if err := conn.QueryRow(ctx, `select version from `+versionTable(schema)).Scan(&s.Current); err != nil {
		return s, fmt.Errorf("read schema version: %w", err)
	}
	return s, nil
}

// Check returns an error that says what to do where the database's schema is
// not this binary's version.
func Check(ctx context.Context, conn *pgx.Conn, schema string) error {
	s, err := Read(ctx, conn, schema)
	switch {
	case err != nil:
		return err
	case s.Current > s.Latest:
		return fmt.Errorf("version %d, known %d: %w", s.Current, s.Latest, ErrNewer)
	case s.Current == 0:
		return fmt.Errorf("schema %s is not installed in this database: run `keyline migrate up`", schema)
	case s.Current < s.Latest:
		return fmt.Errorf("schema %s is at version %d, this binary needs %d: run `keyline migrate up`", schema, s.Current, s.Latest)
	}
	return nil
}

// SQL returns the migrations' SQL above a version, for those who run it
// themselves. It also keeps the version, so that the database then counts as
// migrated. Each migration is one transaction.
func SQL(schema string, above int32) (string, error) {
	list, err := load(schema)
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

func load(schema string) ([]*migrate.Migration, error) {
	if err := CheckSchemaName(schema); err != nil {
		return nil, err
	}
	m := &migrate.Migrator{Data: map[string]any{"schema": schema}}
	if err := m.LoadMigrations(files); err != nil {
		return nil, fmt.Errorf("load migrations: %w", err)
	}
	return m.Migrations, nil
}

func open(ctx context.Context, conn *pgx.Conn, schema string) (*migrate.Migrator, error) {
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
	m.Data = map[string]any{"schema": schema}
	if err := m.LoadMigrations(files); err != nil {
		return nil, fmt.Errorf("load migrations: %w", err)
	}
	return m, nil
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
