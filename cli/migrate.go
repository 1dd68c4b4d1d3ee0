package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/migrations"
)

func (a *app) migrateCommand() *cobra.Command {
	return group("migrate", "Install, upgrade and inspect Keyline's schema",
		a.migrateUp(), a.migrateDown(), a.migrateStatus(), a.migrateSQL(), a.migrateRoles())
}

// migrated is the output of migrate up and down.
type migrated struct {
	Schema string `json:"schema"`
	From   int32  `json:"from"`
	To     int32  `json:"to"`
	ahead  bool   // of this binary
}

func (a *app) printMigrated(m migrated) error {
	switch {
	case a.global.json:
		return a.printJSON(m)
	case m.From == m.To && m.ahead:
		return a.print("schema %s is at version %d, newer than this binary, which it still serves: nothing to do", m.Schema, m.To)
	case m.From == m.To:
		return a.print("schema %s is at version %d already", m.Schema, m.To)
	}
	return a.print("schema %s: version %d → %d", m.Schema, m.From, m.To)
}

func (a *app) migrateUp() *cobra.Command {
	return &cobra.Command{
		Use: "up", Short: "Bring the schema to this binary's version", Args: arguments(cobra.NoArgs),
		Long: "Brings the schema to this binary's version, while workers of the release before go on. Several at once are safe: one\n" +
			"migrates, the others wait. It waits up to two minutes for transactions that hold what it has to lock, and makes nobody wait behind it\n" +
			"for more than a moment. A newer schema that still serves this binary is left as it is.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			conn, err := a.connect(cmd)
			if err != nil {
				return err
			}
			defer disconnect(cmd.Context(), conn)
			from, to, err := migrations.Up(cmd.Context(), conn, a.global.schema)
			if err != nil {
				return interfered(conn, err)
			}
			s, err := migrations.Read(cmd.Context(), conn, a.global.schema)
			if err != nil {
				return err
			}
			return a.printMigrated(migrated{a.global.schema, from, to, s.Ahead()})
		},
	}
}

// interfered classes the error of a migration that others, or the end of its connection, have kept from going on: to be tried again.
func interfered(conn *pgx.Conn, err error) error {
	if !errors.Is(err, context.Canceled) && (conn.IsClosed() || errors.Is(err, migrations.ErrBusy)) {
		return fmt.Errorf("%w: %w", keyline.ErrUnavailable, err)
	}
	return err
}

func (a *app) migrateDown() *cobra.Command {
	var (
		to  int32
		yes bool
	)
	cmd := &cobra.Command{
		Use: "down", Short: "Take the schema back to an older version; 0 removes everything", Args: arguments(cobra.NoArgs),
		Example: "  keyline migrate down --to 0 --yes",
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case !cmd.Flags().Changed("to"):
				return usagef(cmd, "say how far: --to VERSION (0 removes everything)")
			case to < 0:
				return usagef(cmd, "--to %d: there are no versions below 0", to)
			case !yes:
				return usagef(cmd, "this deletes data; say --yes if that is meant")
			}
			conn, err := a.connect(cmd)
			if err != nil {
				return err
			}
			defer disconnect(cmd.Context(), conn)
			s, err := migrations.Read(cmd.Context(), conn, a.global.schema)
			if err != nil {
				return err
			}
			if to > s.Current {
				return usagef(cmd, "--to %d: the schema is at version %d, which is not above it", to, s.Current)
			}
			if to < s.Current {
				if err := migrations.To(cmd.Context(), conn, a.global.schema, to); err != nil {
					return interfered(conn, err)
				}
			}
			return a.printMigrated(migrated{a.global.schema, s.Current, to, false})
		},
	}
	cmd.Flags().Int32Var(&to, "to", 0, "version to go back to")
	cmd.Flags().BoolVar(&yes, "yes", false, "delete what the older version does not have")
	return cmd
}

func (a *app) migrateStatus() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Say how the schema stands to this binary", Args: arguments(cobra.NoArgs),
		Long: "Says how the schema stands to this binary. The exit code is 1 where this binary cannot work on it.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			conn, err := a.connect(cmd)
			if err != nil {
				return err
			}
			defer disconnect(cmd.Context(), conn)
			s, err := migrations.Read(cmd.Context(), conn, a.global.schema)
			if err != nil {
				return err
			}
			if a.global.json {
				err = a.printJSON(s)
			} else {
				err = a.print("%s", describe(s))
			}
			if err == nil && s.Fit() != nil {
				err = found()
			}
			return err
		},
	}
}

func describe(s migrations.Status) string {
	switch {
	case s.Current == 0:
		return fmt.Sprintf("schema %s is not installed; this binary would install version %d: run `keyline migrate up`", s.Schema, s.Latest)
	case s.Ahead():
		return fmt.Sprintf("schema %s is at version %d, newer than the %d that this binary knows, and still serves it", s.Schema, s.Current, s.Latest)
	case s.Current > s.Latest:
		return fmt.Sprintf("schema %s is at version %d, newer than the %d that this binary knows: use the newer release", s.Schema, s.Current, s.Latest)
	case s.Current < s.Latest:
		return fmt.Sprintf("schema %s is at version %d of %d: run `keyline migrate up`", s.Schema, s.Current, s.Latest)
	}
	return fmt.Sprintf("schema %s is up to date at version %d", s.Schema, s.Current)
}

func (a *app) migrateSQL() *cobra.Command {
	var above int32
	cmd := &cobra.Command{
		Use: "sql", Short: "Print the migrations' SQL, for those who run it themselves", Args: arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := migrations.CheckSchemaName(a.global.schema); err != nil {
				return &usageError{err: err}
			}
			sql, err := migrations.SQL(a.global.schema, above)
			if err != nil {
				return err
			}
			if a.global.json {
				return a.printJSON(map[string]any{"schema": a.global.schema, "above": above, "sql": sql})
			}
			return a.print("%s", sql)
		},
	}
	cmd.Flags().Int32Var(&above, "above", 0, "leave out the versions up to this one, which the database has")
	return cmd
}

// roleKinds are the ends of the roles' names.
var roleKinds = []string{"producer", "worker", "operator", "reader", "admin"}

func (a *app) migrateRoles() *cobra.Command {
	var onlyPrint bool
	cmd := &cobra.Command{
		Use: "roles", Short: "Make the database roles of an installation, each with no more than it needs", Args: arguments(cobra.NoArgs),
		Long: "Makes the roles SCHEMA_producer (appends), SCHEMA_worker (delivers), SCHEMA_operator (acts, sees no payloads),\n" +
			"SCHEMA_reader (sees no payloads) and SCHEMA_admin (what the admin API logs in as), none of which can log in, or brings\n" +
			"their rights up to date. Grant them to the roles that programs and people log in with. It takes CREATEROLE and the\n" +
			"schema's owner. Run it again after an upgrade.",
		Example: "  keyline migrate roles\n  keyline migrate roles --print | psql -1 -f -",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if onlyPrint {
				if err := migrations.CheckSchemaName(a.global.schema); err != nil {
					return &usageError{err: err}
				}
				sql, err := migrations.RolesSQL(a.global.schema)
				if err != nil {
					return err
				}
				if a.global.json {
					return a.printJSON(map[string]any{"schema": a.global.schema, "sql": sql})
				}
				return a.print("%s", sql)
			}
			conn, err := a.connect(cmd)
			if err != nil {
				return err
			}
			defer disconnect(cmd.Context(), conn)
			if err := a.installed(cmd.Context(), conn); err != nil {
				return err
			}
			if err := migrations.Roles(cmd.Context(), conn, a.global.schema); err != nil {
				return interfered(conn, err)
			}
			names := make([]string, len(roleKinds))
			for i, kind := range roleKinds {
				names[i] = a.global.schema + "_" + kind
			}
			if a.global.json {
				return a.printJSON(map[string]any{"schema": a.global.schema, "roles": names})
			}
			if s, err := migrations.Read(cmd.Context(), conn, a.global.schema); err != nil || s.Ahead() {
				if err != nil {
					return err
				}
				return a.print("roles %s: left to the newer release, whose schema this is", strings.Join(names, ", "))
			}
			return a.print("roles %s: up to date", strings.Join(names, ", "))
		},
	}
	cmd.Flags().BoolVar(&onlyPrint, "print", false, "print the SQL, and change nothing")
	return cmd
}
