package migrations

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Status is how a database stands to this binary.
type Status struct {
	Schema string `json:"schema"`
	// Current is the database's version, 0 where nothing is installed; Latest is this binary's.
	Current int32 `json:"current"`
	Latest  int32 `json:"latest"`
	// Oldest is the oldest binary, by its version, that the database's schema still serves; 0 where nothing is installed.
	Oldest int32 `json:"oldest"`
}

// Fit returns an error that says what to do where this binary cannot work on the
// schema: it is not installed (ErrNotInstalled), older, or newer and serves this binary no more (ErrNewer).
func (s Status) Fit() error {
	switch {
	case s.Current == 0:
		return fmt.Errorf("schema %s is %w", s.Schema, ErrNotInstalled)
	case s.Current < s.Latest:
		return fmt.Errorf("schema %s is at version %d, this binary needs %d: run `keyline migrate up`", s.Schema, s.Current, s.Latest)
	case s.Oldest > s.Latest:
		return fmt.Errorf("version %d serves binaries from version %d on, known %d: %w", s.Current, s.Oldest, s.Latest, ErrNewer)
	}
	return nil
}

// Ahead reports whether the schema is newer than this binary and still serves it: that of an upgrade
// under way, or of binaries that were rolled back.
func (s Status) Ahead() bool { return s.Current > s.Latest && s.Fit() == nil }

// Read returns how the database stands, without changing it.
func Read(ctx context.Context, conn *pgx.Conn, schema string) (Status, error) {
	return ours.read(ctx, conn, schema)
}

func (r release) read(ctx context.Context, conn *pgx.Conn, schema string) (Status, error) {
	list, err := r.load(schema)
	if err != nil {
		return Status{}, err
	}
	s := Status{Schema: schema, Latest: int32(len(list))}
	failed := func(err error) (Status, error) { return s, fmt.Errorf("read schema version: %w", err) }
	var exists bool
	if err := conn.QueryRow(ctx, `select to_regclass($1) is not null`, versionTable(schema)).Scan(&exists); err != nil {
		return failed(err)
	}
	if !exists {
		return s, nil
	}
	if err := conn.QueryRow(ctx, `select version from `+versionTable(schema)).Scan(&s.Current); err != nil {
		return failed(err)
	}
	if s.Current == 0 {
		return s, nil
	}
	// Both in one snapshot: a migration changes them together.
	if err := conn.QueryRow(ctx, `select v.version, m.oldest_binary from `+versionTable(schema)+` v, `+schema+`.meta m`).Scan(&s.Current, &s.Oldest); err != nil {
		return failed(err)
	}
	return s, nil
}

// Check returns an error that says what to do where this binary cannot work on the
// database's schema.
func Check(ctx context.Context, conn *pgx.Conn, schema string) error {
	s, err := Read(ctx, conn, schema)
	if err != nil {
		return err
	}
	return s.Fit()
}
