package crm

import (
	"context"
	"embed"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/tern/v2/migrate"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Migrate brings the application's own schema, crm, to this binary's version.
// Keyline's schema is apart from it, with its own migrations. Two at once are safe.
func Migrate(ctx context.Context, conn *pgx.Conn) error {
	if err := createSchema(ctx, conn); err != nil {
		return fmt.Errorf("create schema crm: %w", err)
	}
	m, err := migrate.NewMigrator(ctx, conn, "crm.schema_version")
	if err != nil {
		return fmt.Errorf("open crm migrator: %w", err)
	}
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	if err := m.LoadMigrations(files); err != nil {
		return fmt.Errorf("load crm migrations: %w", err)
	}
	if err := m.Migrate(ctx); err != nil {
		return fmt.Errorf("migrate crm: %w", err)
	}
	return nil
}

// createSchema makes the schema under a lock: "if not exists" alone is not safe
// against another session that does the same.
func createSchema(ctx context.Context, conn *pgx.Conn) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "select pg_advisory_xact_lock(hashtextextended('crm schema', 0))"); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "create schema if not exists crm")
		return err
	})
}
