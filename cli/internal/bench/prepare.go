package bench

import (
	"context"
	"fmt"
	"runtime"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/migrations"
	"github.com/keylinehq/keyline/store"
)

// recordPrefix begins the records' keys; their number follows.
const recordPrefix = "bench:"

// prepare makes the filled database that every turn gets a copy of.
func (d *drain) prepare(ctx context.Context) error {
	if err := d.chooseCounter(ctx); err != nil {
		return err
	}
	name, url, err := d.server.Database(ctx, "keyline_bench_template", "")
	if err != nil {
		return err
	}
	d.template = name
	err = onConnection(ctx, url, func(conn *pgx.Conn) error {
		_, _, err := migrations.Up(ctx, conn, migrations.DefaultSchema)
		return err
	})
	if err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	// A worker registers the consumers as a program's would.
	w, err := keyline.NewWorker(pool, keyline.Config{Logger: d.Logger}, consumers(newTally(recordPrefix, d.Consumers, 0, 0))...)
	if err != nil {
		return err
	}
	if err := w.Start(ctx); err != nil {
		return err
	}
	if _, err := w.Stop(ctx); err != nil {
		return err
	}
	s, err := store.Open(ctx, store.Config{Pool: pool.Config(), Logger: d.Logger})
	if err != nil {
		return err
	}
	defer s.Close()
	// Registering leaves a walk over all records to do, once. Done here it finds none;
	// left to the first turn it would be measured as if it came with every drain.
	for more := true; more; {
		if more, err = s.Sweep(ctx); err != nil {
			return err
		}
	}
	if err := s.BareSeed(ctx, recordPrefix, d.Records, d.Events); err != nil {
		return err
	}
	return d.finish(ctx, url)
}

// finish brings the filled tables to rest and reads what the figures belong to.
func (d *drain) finish(ctx context.Context, url string) error {
	s := &d.result.Settings
	s.Records, s.Events, s.Consumers, s.Runs = d.Records, d.Events, d.Consumers, d.Runs
	s.CPUs, s.Go, s.Embedded = runtime.GOMAXPROCS(0), runtime.Version(), d.server.Embedded()
	s.StatementsFrom = "client"
	if d.statements {
		s.StatementsFrom = "pg_stat_statements"
	}
	return onConnection(ctx, url, func(conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, "vacuum (analyze)"); err != nil {
			return fmt.Errorf("vacuum: %w", err)
		}
		return conn.QueryRow(ctx, sqlSettings).Scan(&s.PostgreSQL, &s.Fsync, &s.SynchronousCommit)
	})
}

// chooseCounter lets our own server count statements if it can.
func (d *drain) chooseCounter(ctx context.Context) error {
	if !d.server.Embedded() {
		return nil // somebody's server is not ours to restart
	}
	available, err := d.server.Preload(ctx, "pg_stat_statements")
	d.statements = available
	return err
}
