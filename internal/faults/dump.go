package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// dumpedViews are kept of a scenario that has failed beside all tables of the
// schemas that matter; tokens of the admin API are none of them.
var dumpedViews = []string{
	"(select * from pg_locks where locktype in ('advisory', 'transactionid', 'tuple')) as locks",
	"(select pid, application_name, backend_start, state, wait_event, query from pg_stat_activity where datname = current_database()) as sessions"}

// Events and the log can be long where a scenario is about much: their last rows tell most.
const dumpedTables = `select case c.relname
		when 'events' then '(select record_id, seq, type, version, created_at, payload from keyline.events order by created_at desc limit 20000) as keyline.events'
		else n.nspname || '.' || c.relname end
	from pg_class c join pg_namespace n on n.oid = c.relnamespace
	where n.nspname in ('keyline', 'crm', 'faults') and c.relkind in ('r', 'p') and c.relname not in ('api_tokens', 'schema_version') order by 1`

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
	rows, err := conn.Query(ctx, dumpedTables)
	if err != nil {
		return
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return
	}
	for _, table := range append(tables, dumpedViews...) {
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
