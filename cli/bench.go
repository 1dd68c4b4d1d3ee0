package cli

import (
	"fmt"
	"strconv"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/keylinehq/keyline/cli/internal/bench"
)

func (a *app) benchCommand() *cobra.Command {
	return group("bench", "Measure what the runtime makes of what Postgres can do", a.benchDrain())
}

func (a *app) benchDrain() *cobra.Command {
	var cfg bench.Config
	cmd := &cobra.Command{
		Use: "drain", Short: "Drain records that are full of events, in turn with the bare loop and with a worker", Args: arguments(cobra.NoArgs),
		Long: "Fills records with events and drains them: in turn with the bare loop, which runs the same SQL without actors and\n" +
			"handlers, and with a real worker, whose handlers check order and count and do nothing else. It starts a PostgreSQL\n" +
			"server of its own, or makes databases on the one that DATABASE_URL names. Figures of one machine are to be read as\n" +
			"ratios. The exit code is 1 where anything was lost, repeated or out of order; no speed ever fails.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			for name, v := range map[string]int{"records": cfg.Records, "consumers": cfg.Consumers, "runs": cfg.Runs, "events": cfg.Events} {
				if v < 1 {
					return usagef(cmd, "--%s %d: at least 1", name, v)
				}
			}
			if cfg.Events > bench.MaxEvents {
				return usagef(cmd, "--events %d: at most %d", cfg.Events, bench.MaxEvents)
			}
			return a.drain(cmd, cfg)
		},
	}
	f := cmd.Flags()
	f.IntVar(&cfg.Records, "records", 200_000, "records to drain")
	f.IntVar(&cfg.Events, "events", 1, "events of each record")
	f.IntVar(&cfg.Consumers, "consumers", 1, "consumers that each event is delivered to")
	f.IntVar(&cfg.Runs, "runs", 3, "pairs of turns")
	f.BoolVar(&cfg.Durable, "durable", false, "let the server of its own wait for its disk")
	return cmd
}

func (a *app) drain(cmd *cobra.Command, cfg bench.Config) error {
	log, err := a.global.logger(a.stderr)
	if err != nil {
		return err
	}
	cfg.DatabaseURL, cfg.Logger = a.global.databaseURL, log
	var bar *progressbar.ProgressBar
	if isTerminal(a.stderr) {
		bar = progressbar.NewOptions(cfg.Steps(), progressbar.OptionSetWriter(a.stderr), progressbar.OptionClearOnFinish(),
			progressbar.OptionShowCount(), progressbar.OptionSetPredictTime(false))
		cfg.Step = func(what string) {
			bar.Describe(what)
			_ = bar.Add(1)
		}
	}
	r, err := bench.Drain(cmd.Context(), cfg)
	if bar != nil {
		_ = bar.Finish()
	}
	if err != nil {
		return err
	}
	if s := r.Settings; s.Busy() {
		a.talk("keyline bench: the machine was busy with other things (load %.1f on %d CPUs): read the figures with care", *s.LoadBefore, s.CPUs)
	}
	if a.global.json {
		err = a.printJSON(r)
	} else {
		err = a.printDrain(r)
	}
	if err == nil && !r.OK() {
		err = found()
	}
	return err
}

func (a *app) printDrain(r bench.Result) error {
	s := r.Settings
	server := "given"
	if s.Embedded {
		server = "embedded"
	}
	err := a.print("%d records × %d events, %d consumers; PostgreSQL %s (%s, fsync %s), %d CPUs\n", s.Records, s.Events, s.Consumers,
		s.PostgreSQL, server, s.Fsync, s.CPUs)
	if err != nil {
		return err
	}
	var rows [][]string
	for i, run := range r.Runs {
		rows = append(rows, []string{strconv.Itoa(i + 1), perSecond(run.EventsPerS), perSecond(run.EventsPerS * float64(s.Consumers)),
			perSecond(run.BareEventsPerS), fmt.Sprintf("%.2f", run.EventsPerS/run.BareEventsPerS)})
	}
	if err := a.section("runs", []string{"RUN", "EVENTS/S", "DELIVERIES/S", "BARE EVENTS/S", "RATIO"}, rows); err != nil {
		return err
	}
	return a.print("ratio %.2f (median); per delivery %.4f statements, %.5f commits, %.0f bytes of WAL\norder violations %d, lost %d, duplicates %d",
		r.RatioMedian, r.StatementsPerDelivery, r.CommitsPerDelivery, r.WALBytesPerDelivery, r.OrderViolations, r.Lost, r.Duplicates)
}

func perSecond(v float64) string { return strconv.FormatFloat(v, 'f', 0, 64) }
