package demo

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/examples/crm/crm"
	"github.com/keylinehq/keyline/examples/crm/fakeprovider"
	"github.com/keylinehq/keyline/examples/crm/faults"
	"github.com/keylinehq/keyline/examples/crm/recorder"
	"github.com/keylinehq/keyline/internal/clock"
)

// WorkerConfig is what one of the demo's worker processes is told.
type WorkerConfig struct {
	DatabaseURL string
	Name        string
	// Sabotage is how delivery is broken on purpose: "", "drop" or "reorder".
	Sabotage string
	// Input is read to its end: then the process that has started this one is
	// gone, or wants it to stop.
	Input io.Reader
	// Ready gets a line once the worker has joined.
	Ready  io.Writer
	Logger *slog.Logger
}

// shutdownGrace is how long a worker process may take to stop.
const shutdownGrace = 5 * time.Second

// Work is the body of a worker process. It ends with its input or with ctx.
func Work(ctx context.Context, cfg WorkerConfig) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() { // ends with the process at the latest
		_, _ = io.Copy(io.Discard, cfg.Input)
		stop()
	}()
	poolConfig, err := pgxpool.ParseConfig(cfg.DatabaseURL)
	if err != nil {
		return err
	}
	poolConfig.MaxConns = 12
	pool, err := pgxpool.NewWithConfig(ctx, poolConfig)
	if err != nil {
		return err
	}
	defer pool.Close()
	provider, err := fakeprovider.New(ctx, pool)
	if err != nil {
		return err
	}
	list := faults.Inject(consumers(crm.Deps{DB: pool, Provider: provider}), rules(clock.Real())...)
	list = recorder.Record(list, pool, cfg.Name)
	if list, err = faults.Sabotage(list, cfg.Sabotage); err != nil {
		return err
	}
	w, err := keyline.NewWorker(pool, keyline.Config{
		Name: cfg.Name, Lease: lease, PollInterval: pollInterval, ShutdownGrace: shutdownGrace, Logger: cfg.Logger,
	}, list...)
	if err != nil {
		return err
	}
	if err := w.Start(ctx); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(cfg.Ready, readyLine); err != nil {
		return fmt.Errorf("say that the worker is ready: %w", err)
	}
	<-ctx.Done()
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
	defer cancel()
	_, err = w.Stop(grace)
	return err
}

const readyLine = "ready"
