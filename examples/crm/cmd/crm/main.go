// Command crm runs the reference application.
//
//	crm migrate                 # Keyline's schema and the application's, then ends
//	crm serve                   # the HTTP API; deliveries are for other processes
//	crm serve -worker           # the HTTP API with a worker embedded
//	crm worker                  # a worker alone: start as many as you like
//
// The database is the one of -database-url or DATABASE_URL.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel"
	"golang.org/x/sync/errgroup"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/cmd/keyline/telemetry"
	"github.com/keylinehq/keyline/examples/crm/crm"
	"github.com/keylinehq/keyline/examples/crm/fakeprovider"
	"github.com/keylinehq/keyline/examples/crm/httpapi"
	"github.com/keylinehq/keyline/migrations"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := run(ctx, log, os.Args[1:]); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "crm:", err)
		}
		os.Exit(1)
	}
}

// options are the command line.
type options struct {
	database string
	addr     string
	worker   bool
	otlp     bool
	retry    pauses
}

// pauses are what a failed delivery waits between its runs.
type pauses []time.Duration

// String implements flag.Value.
func (p *pauses) String() string { return "" }

// Set implements flag.Value.
func (p *pauses) Set(text string) error {
	*p = nil
	for part := range strings.SplitSeq(text, ",") {
		d, err := time.ParseDuration(part)
		if err != nil {
			return err
		}
		*p = append(*p, d)
	}
	return nil
}

const usage = "usage: crm migrate|serve|worker [flags]"

func run(ctx context.Context, log *slog.Logger, args []string) error {
	if len(args) == 0 {
		return errors.New(usage)
	}
	var o options
	flags := flag.NewFlagSet("crm "+args[0], flag.ContinueOnError)
	flags.StringVar(&o.database, "database-url", os.Getenv("DATABASE_URL"), "the database")
	flags.StringVar(&o.addr, "addr", "127.0.0.1:8080", "where serve listens")
	flags.BoolVar(&o.worker, "worker", false, "serve: run a worker in this process too")
	flags.BoolVar(&o.otlp, "otlp", false, "send traces to OTEL_EXPORTER_OTLP_ENDPOINT, by gRPC")
	flags.Var(&o.retry, "retry", "pauses between the runs of a delivery that fails, such as 1s,1s,1s to watch one (default 1m,5m,30m)")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("%q is too much; %s", flags.Arg(0), usage)
	}
	endTraces, err := traces(ctx, o.otlp)
	if err != nil {
		return err
	}
	defer endTraces(log)
	pool, err := connect(ctx, o)
	if err != nil {
		return err
	}
	defer pool.Close()
	switch args[0] {
	case "migrate":
		return migrate(ctx, pool)
	case "serve":
		return serve(ctx, log, pool, o)
	case "worker":
		return work(ctx, log, pool, o)
	}
	return fmt.Errorf("unknown command %q; %s", args[0], usage)
}

// connect makes the pool that everything here works on: requests, the worker and
// its handlers. With traces, each statement has a span of its own where it is part of one.
func connect(ctx context.Context, o options) (*pgxpool.Pool, error) {
	if o.database == "" {
		return nil, errors.New("no database: give -database-url or set DATABASE_URL")
	}
	cfg, err := pgxpool.ParseConfig(o.database)
	if err != nil { // whose text shows a part of what it cannot read, passwords too
		return nil, errors.New("-database-url or DATABASE_URL cannot be read: the user, the password and the database have to be escaped as in a URL")
	}
	if o.otlp {
		cfg.ConnConfig.Tracer = telemetry.SQL(otel.GetTracerProvider())
	}
	return pgxpool.NewWithConfig(ctx, cfg)
}

// migrate is a command of its own, so that nothing else runs meanwhile.
func migrate(ctx context.Context, pool *pgxpool.Pool) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if _, _, err := migrations.Up(ctx, conn.Conn(), migrations.DefaultSchema); err != nil {
		return err
	}
	return crm.Migrate(ctx, conn.Conn())
}

// serve runs the API, and with o.worker a worker beside it, until ctx ends.
func serve(ctx context.Context, log *slog.Logger, pool *pgxpool.Pool, o options) error {
	client, err := crm.NewClient()
	if err != nil {
		return err
	}
	if err := client.RegisterEventTypes(ctx, pool); err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.addr)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler:           httpapi.New(crm.NewService(pool, client), httpapi.Options{Logger: log}),
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute,
	}
	log.Info("serving", "addr", "http://"+listener.Addr().String(), "worker", o.worker)
	parts, ctx := errgroup.WithContext(ctx)
	parts.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	parts.Go(func() error {
		<-ctx.Done()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		return server.Shutdown(grace)
	})
	if o.worker {
		parts.Go(func() error { return work(ctx, log, pool, o) })
	}
	return parts.Wait()
}

// work runs a worker until ctx ends.
func work(ctx context.Context, log *slog.Logger, pool *pgxpool.Pool, o options) error {
	provider, err := fakeprovider.New(ctx, pool)
	if err != nil {
		return err
	}
	consumers := crm.Consumers(crm.Deps{DB: pool, Provider: provider})
	for i := range consumers {
		consumers[i].Retry.Delays = o.retry // nil: the default
	}
	worker, err := keyline.NewWorker(pool, keyline.Config{Logger: log}, consumers...)
	if err != nil {
		return err
	}
	return worker.Run(ctx)
}
