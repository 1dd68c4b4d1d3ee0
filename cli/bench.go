package cli

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/keylinehq/keyline/cli/internal/bench"
)

func (a *app) benchCommand() *cobra.Command {
	cmds := []*cobra.Command{a.benchDrain(), a.benchProcess()}
	for _, sc := range bench.Scenarios() {
		cmds = append(cmds, a.benchScenario(sc))
	}
	return group("bench", "Measure what the runtime makes of what Postgres can do", cmds...)
}

// benchWhere is said of each benchmark.
const benchWhere = "It starts a PostgreSQL server of its own, or makes databases on the one that DATABASE_URL names. Figures of one machine\n" +
	"are to be read as ratios. The exit code is 1 where anything was lost, repeated or out of order; no speed ever fails."

func (a *app) benchDrain() *cobra.Command {
	var cfg bench.DrainConfig
	cmd := &cobra.Command{
		Use: "drain", Short: "Drain records that are full of events, in turn with the bare loop and with a worker", Args: arguments(cobra.NoArgs),
		Long: "Fills records with events and drains them: in turn with the bare loop, which runs the same SQL without actors and\n" +
			"handlers, and with a real worker, whose handlers check order and count and do nothing else.\n" + benchWhere,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for name, v := range map[string]int{"records": cfg.Records, "consumers": cfg.Consumers, "runs": cfg.Runs, "events": cfg.Events} {
				if v < 1 {
					return usagef(cmd, "--%s %d: at least 1", name, v)
				}
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

func (a *app) benchScenario(sc bench.Scenario) *cobra.Command {
	var cfg bench.ScenarioConfig
	var plot string
	cmd := &cobra.Command{
		Use: sc.Name, Short: sc.Short, Args: arguments(cobra.NoArgs), Long: sc.Long + "\n" + benchWhere,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case cfg.Runs < 1:
				return usagef(cmd, "--runs %d: at least 1", cfg.Runs)
			case cfg.Scale <= 0:
				return usagef(cmd, "--scale %v: more than 0", cfg.Scale)
			case cfg.Duration <= 0:
				return usagef(cmd, "--duration %v: more than 0", cfg.Duration)
			}
			return a.play(cmd, sc, cfg, plot)
		},
	}
	f := cmd.Flags()
	f.IntVar(&cfg.Runs, "runs", 3, "turns of each case, which alternate")
	f.StringVar(&plot, "plot", "", "write the courses of its turns to this file, as SVG, where it has any")
	f.Float64Var(&cfg.Scale, "scale", 1, "multiplies the numbers of records and events")
	f.DurationVar(&cfg.Duration, "duration", 5*time.Second, "how long appenders append, where they do")
	f.BoolVar(&cfg.Durable, "durable", false, "let the server of its own wait for its disk")
	return cmd
}

// benchProcess is one of the processes of the scenarios that have several.
func (a *app) benchProcess() *cobra.Command {
	var hold time.Duration
	cmd := &cobra.Command{
		Use: bench.WorkerCommand + " [RECORDS]", Hidden: true, Args: arguments(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			log, err := a.global.logger(a.stderr)
			if err != nil {
				return err
			}
			if hold > 0 {
				return bench.RunHolder(cmd.Context(), a.global.databaseURL, hold, cmd.InOrStdin(), a.stdout, log)
			}
			records, err := strconv.Atoi(strings.Join(args, ""))
			if err != nil {
				return usagef(cmd, "%s: %v", args, err)
			}
			return bench.RunProcess(cmd.Context(), a.global.databaseURL, records, cmd.InOrStdin(), a.stdout, log)
		},
	}
	cmd.Flags().DurationVar(&hold, "hold", 0, "the lease of a worker whose handlers never end")
	return cmd
}

func (a *app) drain(cmd *cobra.Command, cfg bench.DrainConfig) error {
	return a.bench(&cfg.Config, cfg.Steps(), func() (bench.Settings, bool, error) {
		r, err := bench.Drain(cmd.Context(), cfg)
		if err != nil {
			return r.Settings.Settings, false, err
		}
		if a.global.json {
			err = a.printJSON(r)
		} else {
			err = a.printDrain(r)
		}
		return r.Settings.Settings, r.OK(), err
	})
}

func (a *app) play(cmd *cobra.Command, sc bench.Scenario, cfg bench.ScenarioConfig, plot string) error {
	return a.bench(&cfg.Config, -1, func() (bench.Settings, bool, error) {
		r, err := bench.Play(cmd.Context(), sc, cfg)
		if err != nil {
			return r.Settings, false, err
		}
		if svg := bench.Plot(r); plot != "" && svg != nil {
			if err := os.WriteFile(plot, svg, 0o644); err != nil { //nolint:gosec // a picture for everybody
				return r.Settings, false, err
			}
		}
		if a.global.json {
			err = a.printJSON(r)
		} else {
			err = a.printReport(r)
		}
		return r.Settings, r.OK(), err
	})
}

// bench runs a benchmark of some steps (-1: nobody knows) with what is the same for all.
func (a *app) bench(cfg *bench.Config, steps int, run func() (s bench.Settings, ok bool, err error)) error {
	log, err := a.global.logger(a.stderr)
	if err != nil {
		return err
	}
	cfg.DatabaseURL, cfg.Logger = a.global.databaseURL, log
	var bar *progressbar.ProgressBar
	if isTerminal(a.stderr) {
		bar = progressbar.NewOptions(steps, progressbar.OptionSetWriter(a.stderr), progressbar.OptionClearOnFinish(),
			progressbar.OptionShowCount(), progressbar.OptionSetPredictTime(false))
		cfg.Step = func(what string) {
			bar.Describe(what)
			_ = bar.Add(1)
		}
	}
	s, ok, err := run()
	if bar != nil {
		_ = bar.Finish()
	}
	if s.Busy() {
		a.talk("keyline bench: the machine was busy with other things (load %.1f on %d CPUs): read the figures with care", *s.LoadBefore, s.CPUs)
	}
	if err == nil && !ok {
		err = found()
	}
	return err
}

func (a *app) benchHead(s bench.Settings) error {
	server := "given"
	if s.Embedded {
		server = "embedded"
	}
	return a.print("PostgreSQL %s (%s, fsync %s), %d CPUs, %d runs\n", s.PostgreSQL, server, s.Fsync, s.CPUs, s.Runs)
}

func (a *app) printReport(r bench.Report) error {
	if err := a.benchHead(r.Settings); err != nil {
		return err
	}
	var rows [][]string
	for _, c := range r.Cases {
		for _, f := range c.Figures {
			rows = append(rows, []string{c.Name, f.Name, figure(f.Value), f.Unit})
		}
	}
	if err := a.section("figures", []string{"CASE", "FIGURE", "MEDIAN", "UNIT"}, rows); err != nil {
		return err
	}
	rows = nil
	for _, g := range r.Goals {
		bound := "at least "
		if g.Most {
			bound = "at most "
		}
		reached := "no"
		if g.Reached {
			reached = "yes"
		}
		rows = append(rows, []string{g.Name, bound + figure(g.Want), figure(g.Got), reached})
	}
	if err := a.section("goals", []string{"GOAL", "WANTED", "MEASURED", "REACHED"}, rows); err != nil {
		return err
	}
	return a.print("order violations %d, lost %d, duplicates %d", r.OrderViolations, r.Lost, r.Duplicates)
}

// figure leaves out digits that mean nothing.
func figure(v float64) string {
	if v >= 100 || v <= -100 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

func (a *app) printDrain(r bench.DrainResult) error {
	s := r.Settings
	if err := a.print("%d records × %d events, %d consumers; ", s.Records, s.Events, s.Consumers); err != nil {
		return err
	}
	if err := a.benchHead(s.Settings); err != nil {
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
