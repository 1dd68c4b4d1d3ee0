package migrations

import (
	"context"
	_ "embed"
	"fmt"
	"strings"
	"text/template"

	"github.com/jackc/pgx/v5"
)

//go:embed roles/roles.sql
var rolesText string

// RolesSQL returns the SQL that makes an installation's roles and grants each what
// it needs and nothing else: SCHEMA_producer, SCHEMA_worker, SCHEMA_operator, SCHEMA_reader and SCHEMA_admin.
func RolesSQL(schema string) (string, error) {
	if err := CheckSchemaName(schema); err != nil {
		return "", err
	}
	t, err := template.New("roles").Parse(rolesText)
	if err != nil {
		return "", fmt.Errorf("read roles: %w", err)
	}
	var out strings.Builder
	if err := t.Execute(&out, map[string]any{"schema": schema}); err != nil {
		return "", fmt.Errorf("read roles: %w", err)
	}
	return out.String(), nil
}

// Roles makes an installation's roles, or brings their rights to what this binary
// knows: all of it or nothing. Where the schema is newer than this binary (Status.Ahead) it leaves them alone, since the
// newer release has made them for what is new. It takes the schema's owner with CREATEROLE, or, where the roles exist, the owner.
func Roles(ctx context.Context, conn *pgx.Conn, schema string) error {
	text, err := RolesSQL(schema)
	if err != nil {
		return err
	}
	s, err := Read(ctx, conn, schema)
	if err != nil {
		return err
	}
	if err := s.Fit(); err != nil || s.Ahead() {
		return err
	}
	tx, err := conn.Begin(ctx)
	if err != nil {
		return fmt.Errorf("make roles: %w", err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	// Two at once would change the same rights at once.
	if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock(hashtextextended($1, 0))`, "keyline schema "+schema); err != nil {
		return fmt.Errorf("make roles: %w", err)
	}
	if _, err := tx.Exec(ctx, text); err != nil {
		return fmt.Errorf("make roles: %w", err)
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("make roles: %w", err)
	}
	return nil
}
