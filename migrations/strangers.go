package migrations

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/tern/v2/migrate"
)

// ErrInUse is returned where the schema cannot be removed, since with it would go what is not Keyline's.
var ErrInUse = errors.New("the schema is not removed: with it would go what is not Keyline's")

//go:embed strangers.sql
var strangersSQL string

// mostStrangers is how many of them an error names.
const mostStrangers = 10

// alone returns an error where the schema holds what no migration made, or where something outside it depends on it. The way down
// to 0 drops all that is there, and what depends on it: `public` may be a schema of Keyline's, and an application may have views on its tables.
func alone(ctx context.Context, conn *pgx.Conn, list []*migrate.Migration, schema string) error {
	rows, err := conn.Query(ctx, strangersSQL, schema, made(list, schema))
	if err != nil {
		return fmt.Errorf("look for what is not Keyline's: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("look for what is not Keyline's: %w", err)
	}
	if len(found) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s: move or drop it first", ErrInUse, few(found))
}

// few names what was found, or the first of it.
func few(found []string) string {
	if n := len(found); n > mostStrangers {
		found = append(found[:mostStrangers], fmt.Sprintf("and %d more", n-mostStrangers))
	}
	return strings.Join(found, ", ")
}

// made are the names of what the migrations make: all that their SQL names in the schema.
func made(list []*migrate.Migration, schema string) []string {
	names := []string{versionName}
	of := regexp.MustCompile(`\b` + regexp.QuoteMeta(schema) + `\.([a-z_][a-z0-9_]*)`)
	for _, m := range list {
		for _, match := range of.FindAllStringSubmatch(m.UpSQL, -1) {
			names = append(names, match[1])
		}
	}
	return names
}
