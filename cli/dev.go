package cli

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/keylinehq/keyline/internal/dsn"
	"github.com/keylinehq/keyline/internal/pgdev"
	"github.com/keylinehq/keyline/migrations"
)

func (a *app) devCommand() *cobra.Command {
	var (
		s    workerSettings
		dir  string
		port int
	)
	cmd := &cobra.Command{
		Use: "dev", Short: "Run a database and a worker to play with, until Ctrl-C", Args: arguments(cobra.NoArgs),
		Long: "Runs a PostgreSQL server of its own (or uses the one that DATABASE_URL names), installs the schema, prints the\n" +
			"connection string and runs a worker. Without consumers of a program's own, every event is written to standard\n" +
			"output. The server is a forgetful one, and with it goes its data, unless --dir says where to keep it.",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			url := a.global.databaseURL
			if url == "" {
				server, startErr := pgdev.Start(cmd.Context(), pgdev.Options{Dir: dir, Durable: dir != "", TCP: true, Port: port})
				if startErr != nil {
					return startErr
				}
				defer func() { err = errors.Join(err, server.Stop()) }()
				url = server.TCPURL("postgres")
			} else if cmd.Flags().Changed("dir") || cmd.Flags().Changed("port") {
				return usagef(cmd, "--dir and --port are about a server of its own, but a database is given")
			}
			a.global.databaseURL = url
			if err := a.prepareDev(cmd); err != nil {
				return err
			}
			pool, err := a.poolConfig(cmd)
			if err != nil {
				return err
			}
			consumers, err := a.hosted(&s)
			if err != nil {
				return err
			}
			return a.serve(cmd, &s, pool, consumers)
		},
	}
	s.flags(cmd.Flags())
	cmd.Flags().StringVar(&dir, "dir", "", "where to keep the server's data (default: nowhere)")
	cmd.Flags().IntVar(&port, "port", 0, "loopback port of the server (default: a free one)")
	return cmd
}

// prepareDev migrates, and says where the database is.
func (a *app) prepareDev(cmd *cobra.Command) error {
	cfg, err := dsn.One(a.global.databaseURL)
	if err != nil {
		return &usageError{err: err}
	}
	conn, err := pgx.ConnectConfig(cmd.Context(), cfg)
	if err != nil {
		return unreachable(err)
	}
	defer disconnect(cmd.Context(), conn)
	if _, _, err := migrations.Up(cmd.Context(), conn, a.global.schema); err != nil {
		return fmt.Errorf("install the schema: %w", err)
	}
	if a.global.json {
		return a.printJSON(map[string]string{"database_url": a.global.databaseURL})
	}
	if err := a.print("DATABASE_URL='%s'", a.global.databaseURL); err != nil {
		return err
	}
	a.talk("Try, in another terminal: keyline append activity:42 activity.completed '{\"by\":\"u1\"}'  Ctrl-C ends this one.")
	return nil
}
