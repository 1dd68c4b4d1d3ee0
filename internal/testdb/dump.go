package testdb

import (
	"context"
	_ "embed"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

//go:embed dump.sql
var dumpSQL string

// DumpSchema describes everything in a schema as text: what it has, in an order
// and a form that depend neither on how it came about nor on who owns it. Two
// databases with the same dump have the same schema, and a change of the schema
// is a readable difference of two dumps. (pg_dump would say the same, but its
// output changes with its version, and it may not be installed.)
func DumpSchema(ctx context.Context, conn *pgx.Conn, schema string) (string, error) {
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return "", fmt.Errorf("dump schema %s: %w", schema, err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	// With nothing on the path, the server qualifies every name that it prints.
	if _, err := tx.Exec(ctx, "set local search_path = ''"); err != nil {
		return "", fmt.Errorf("dump schema %s: %w", schema, err)
	}
	rows, err := tx.Query(ctx, dumpSQL, schema)
	if err != nil {
		return "", fmt.Errorf("dump schema %s: %w", schema, err)
	}
	type line struct{ Section, Name, Detail string }
	lines, err := pgx.CollectRows(rows, pgx.RowToStructByPos[line])
	if err != nil {
		return "", fmt.Errorf("dump schema %s: %w", schema, err)
	}
	var b strings.Builder
	var section, name string
	for _, l := range lines {
		if l.Section != section || l.Name != name {
			fmt.Fprintf(&b, "\n%s %s\n", l.Section[3:], l.Name) // without the "01 " that orders it
			section, name = l.Section, l.Name
		}
		for text := range strings.Lines(strings.TrimSpace(l.Detail) + "\n") {
			b.WriteString(strings.TrimRight("    "+text, " \n") + "\n")
		}
	}
	return strings.TrimPrefix(b.String(), "\n"), nil
}
