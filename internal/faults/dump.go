package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// dumped is what is kept of a scenario that has failed.
var dumped = []string{"crm.delivered_log", "keyline.records", "keyline.mailboxes", "keyline.checkpoints", "keyline.workers", "keyline.dead_letters",
	"keyline.failures", "keyline.consumers", "keyline.commands", "keyline.consumer_health", "keyline.meta", "keyline.sweep_left",
	"(select * from pg_locks where locktype in ('advisory', 'transactionid', 'tuple')) as locks",
	"(select pid, application_name, backend_start, state, wait_event, query from pg_stat_activity where datname = current_database()) as sessions"}

// dump writes the tables that tell what happened beside the workers' logs.
func (t *stage) dump() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if t.dir == "" {
		return
	}
	conn, err := pgx.Connect(ctx, t.url())
	if err != nil {
		return
	}
	defer func() { _ = conn.Close(ctx) }()
	for _, table := range dumped {
		what, name, named := strings.Cut(table, " as ")
		if !named {
			name = table
		}
		f, err := os.Create(filepath.Join(t.dir, name+".csv"))
		if err != nil {
			return
		}
		_, _ = conn.PgConn().CopyTo(ctx, f, "copy "+what+" to stdout with (format csv, header)") // what there is is kept
		_ = f.Close()
	}
}
