package cli

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/cmd/keyline/telemetry"
)

func (a *app) workerCommand() *cobra.Command {
	var (
		s     workerSettings
		check bool
	)
	cmd := &cobra.Command{
		Use: "worker", Short: "Run a worker until a signal ends it", Args: arguments(cobra.NoArgs),
		Long: "Runs a worker until SIGINT, SIGTERM or SIGHUP, which it takes as: claim nothing more, let handlers finish, hand back the\n" +
			"rest. A second one cuts the waiting short; nothing is lost by it.\n\n" +
			"With --once it delivers what is due and ends, for a scheduled job. It also ends when an operator drains it\n" +
			"(keyline drain), and with an error when the schema is migrated to a version that does not serve it.\n\n" +
			"Every flag is also an environment variable (--poll-interval: KEYLINE_POLL_INTERVAL) and a setting of the file that\n" +
			"--config names. A flag wins over the environment, the environment over the file. The file can also hold consumers\n" +
			"that hand their events to HTTP endpoints (webhooks); --check reads it all and starts nothing.\n\n" +
			"--http serves /livez, /readyz (which says what is missing) and /metrics; traces and metrics also go where\n" +
			"OTEL_EXPORTER_OTLP_ENDPOINT says. Profiles are served by --debug-http alone.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			consumers, err := a.hosted(&s)
			if err != nil {
				return err
			}
			if check {
				return a.check(cmd.Context(), &s, consumers)
			}
			pool, err := a.poolConfig(cmd)
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("within") && !s.once || s.within < 0 {
				return usagef(cmd, "--within %s: goes with --once, and is not negative", s.within)
			}
			return a.serve(cmd, &s, pool, consumers)
		},
	}
	s.flags(cmd.Flags())
	s.onceFlags(cmd.Flags())
	cmd.Flags().BoolVar(&check, "check", false, "say what would run, and end: settings are read, and nothing is connected")
	return cmd
}

// hosted are the consumers that the worker runs.
func (a *app) hosted(s *workerSettings) ([]keyline.Consumer, error) {
	hooks, err := a.webhooks()
	if err != nil {
		return nil, err
	}
	consumers := append(slices.Clone(a.consumers), hooks...)
	if len(consumers) == 0 {
		consumers = []keyline.Consumer{logConsumer(a.stdout)}
	}
	if len(s.only) == 0 {
		return consumers, nil
	}
	for _, name := range s.only {
		if !slices.ContainsFunc(consumers, func(c keyline.Consumer) bool { return c.Name == name }) {
			return nil, &usageError{err: fmt.Errorf("only: this program has no consumer %q", name)}
		}
	}
	for i := range consumers {
		if c := &consumers[i]; !slices.Contains(s.only, c.Name) && c.Excluded == "" && !c.ContractOnly {
			c.Excluded = "not among --only " + strings.Join(s.only, ",")
		}
	}
	return consumers, nil
}

// serve runs a worker until a signal, with the telemetry that the environment
// asks for.
func (a *app) serve(cmd *cobra.Command, s *workerSettings, pool *pgxpool.Config, consumers []keyline.Consumer) (err error) {
	outliveReaders()
	log, err := a.global.logger(a.stderr)
	if err != nil {
		return err
	}
	tel, err := telemetry.Setup(cmd.Context(), telemetry.Options{Prometheus: s.http != "", CatchUp: s.traceCatchUp, Version: version(), Logger: log})
	if err != nil {
		return fmt.Errorf("set up telemetry: %w", err)
	}
	defer func() {
		flush, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), flushGrace)
		defer cancel()
		if flushErr := tel.Shutdown(flush); flushErr != nil {
			log.Warn("telemetry was not all sent", "error", flushErr)
		}
	}()
	if tracer := telemetry.SQL(tel.TracerProvider); tracer != nil {
		pool.ConnConfig.Tracer = tracer
	}
	cfg := s.config(a.global.schema)
	cfg.Logger, cfg.TracerProvider, cfg.MeterProvider = log, tel.TracerProvider, tel.MeterProvider
	w, closePool, err := newWorker(cmd.Context(), pool, cfg, consumers)
	if err != nil {
		return err
	}
	defer closePool()
	served, err := serveHTTP(cmd.Context(), s, w, tel.Metrics, log)
	if err != nil {
		return err
	}
	defer served.stop()
	if s.once {
		return drainOnce(cmd.Context(), w, cfg, s.within)
	}
	return a.work(cmd.Context(), w, cfg, consumers)
}

// flushGrace is how long the last traces and metrics may take to be sent.
const flushGrace = 5 * time.Second

// work runs a worker until stop ends, an operator drains it, or the schema serves it no more. The signal that ends stop is not the end
// of the work: it is handed back first.
func (a *app) work(stop context.Context, w *keyline.Worker, cfg keyline.Config, consumers []keyline.Consumer) error {
	if err := w.Start(stop); err != nil {
		return err
	}
	if !cfg.Disabled {
		cfg.Logger.Info("worker is ready", "consumers", names(consumers), "schema", cfg.Schema)
	}
	ended := false
	select {
	case <-stop.Done():
		cfg.Logger.Info("worker is stopping", "grace", cfg.ShutdownGrace.String())
	case <-w.Done():
		ended = true
	}
	grace, cancel := context.WithTimeout(a.signals.hurry, cfg.ShutdownGrace)
	defer cancel()
	status, err := w.Stop(grace) //nolint:contextcheck // stop has ended: the grace is what is left
	if ended && err == nil {
		cfg.Logger.Info("worker was drained by an operator")
	}
	report(context.WithoutCancel(stop), cfg.Logger, status)
	return err
}

// drainOnce delivers what is due, and ends.
func drainOnce(stop context.Context, w *keyline.Worker, cfg keyline.Config, within time.Duration) error {
	r, err := w.Drain(stop, keyline.DrainOptions{Within: within})
	report(context.WithoutCancel(stop), cfg.Logger, r.Status)
	return err
}

// newWorker makes a worker on a pool of its own.
func newWorker(ctx context.Context, pool *pgxpool.Config, cfg keyline.Config, consumers []keyline.Consumer) (*keyline.Worker, func(), error) {
	handed, err := pgxpool.NewWithConfig(ctx, pool)
	if err != nil {
		return nil, nil, unreachable(err)
	}
	w, err := keyline.NewWorker(handed, cfg, consumers...)
	if err != nil {
		handed.Close()
		return nil, nil, err
	}
	return w, handed.Close, nil
}

func report(ctx context.Context, log *slog.Logger, s keyline.Status) {
	level := slog.LevelInfo
	if len(s.StillRunning) > 0 {
		level = slog.LevelWarn
	}
	log.Log(ctx, level, "worker has stopped", "completed", s.Completed, "failed", s.Failed, "settled", s.Settled,
		"handed_back", s.HandedBack, "still_running", len(s.StillRunning), "left", s.Left)
}

func names(consumers []keyline.Consumer) []string {
	var list []string
	for _, c := range consumers {
		if c.Excluded == "" && !c.ContractOnly {
			list = append(list, c.Name)
		}
	}
	return list
}
