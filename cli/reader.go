package cli

import (
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/keylinehq/keyline/store"
)

// openReader opens the store for a command that only looks.
func (a *app) openReader(cmd *cobra.Command) (*store.Store, error) {
	conn, err := a.connect(cmd)
	if err != nil {
		return nil, err
	}
	err = a.installed(cmd.Context(), conn)
	disconnect(cmd.Context(), conn)
	if err != nil {
		return nil, err
	}
	pool, err := a.poolConfig(cmd)
	if err != nil {
		return nil, err
	}
	log, err := a.global.logger(a.stderr)
	if err != nil {
		return nil, err
	}
	return store.Open(cmd.Context(), store.Config{Pool: pool, Schema: a.global.schema, Logger: log})
}

// when is a time for people, who do not need its microseconds.
func when(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

// list is a list for people.
func list(items []string) string {
	if len(items) == 0 {
		return "-"
	}
	return strings.Join(items, ",")
}
