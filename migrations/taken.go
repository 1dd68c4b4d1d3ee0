package migrations

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/tern/v2/migrate"
)

// ErrTaken is returned where Keyline cannot be installed in a schema, since something in it has a name that Keyline needs. Nothing
// has been written.
var ErrTaken = errors.New("the schema has what Keyline would make there")

//go:embed taken.sql
var takenSQL string

// free returns an error where nothing is installed and a name that the migrations need is taken.
func free(ctx context.Context, conn *pgx.Conn, list []*migrate.Migration, schema string) error {
	names := slices.DeleteFunc(made(list, schema), func(name string) bool { return name == versionName })
	var found []string
	// One snapshot: another migrator may be at it.
	snapshot := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err := pgx.BeginTxFunc(ctx, conn, snapshot, func(tx pgx.Tx) error {
		var begun, installed bool
		err := tx.QueryRow(ctx, `select exists (select from pg_class where relnamespace = to_regnamespace($1) and relname = $2)`, schema, versionName).Scan(&begun)
		if err == nil && begun {
			err = tx.QueryRow(ctx, `select exists (select from `+versionTable(schema)+` where version > 0)`).Scan(&installed)
		}
		if err != nil || installed {
			return err
		}
		rows, err := tx.Query(ctx, takenSQL, schema, names)
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	switch {
	case err != nil:
		return fmt.Errorf("look for what has Keyline's names: %w", err)
	case len(found) > 0:
		return fmt.Errorf("schema %s: %w: %s: choose another schema, or rename it first", schema, ErrTaken, few(found))
	}
	return nil
}
