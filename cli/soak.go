package cli

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/keylinehq/keyline/cli/internal/demo"
	"github.com/keylinehq/keyline/internal/clock"
)

func (a *app) soakCommand() *cobra.Command {
	var cfg demo.Config
	var chaos bool
	cmd := &cobra.Command{
		Use: "soak", Short: "Long traffic with faults, and a look at what may never be", Args: arguments(cobra.NoArgs),
		Long: "Runs the cluster and the traffic of the demo for a long time, on a PostgreSQL server of its own (or in a database of its\n" +
			"own on the one that DATABASE_URL names). With --chaos it kills and freezes workers, ends their database sessions, and\n" +
			"restarts the server where it is its own, at random. All the while it looks for deliveries out of order and for rows that\n" +
			"must not be (as verify does), and at the end for what was lost. The first thing found ends it, with exit code 1.\n\n" +
			"The seed decides the traffic and the faults; when what happens is up to the machine.\n\n" +
			"--sabotage breaks delivery on purpose, to show that the checks can fail.",
		RunE: func(cmd *cobra.Command, _ []string) error { return a.soak(cmd, cfg, chaos) },
	}
	f := cmd.Flags()
	f.DurationVar(&cfg.Duration, "duration", 10*time.Minute, "how long there is traffic")
	f.IntVar(&cfg.Workers, "workers", 3, "worker processes")
	f.Uint64Var(&cfg.Seed, "seed", 0, "seed of traffic and faults (default: a new one, which is printed)")
	f.BoolVar(&chaos, "chaos", false, "break something now and then")
	f.StringVar(&cfg.Sabotage, "sabotage", "", "break delivery on purpose: drop or reorder")
	return cmd
}

func (a *app) soak(cmd *cobra.Command, cfg demo.Config, chaos bool) error {
	if err := a.cluster(cmd, &cfg); err != nil {
		return err
	}
	r, err := demo.Soak(cmd.Context(), cfg, chaos)
	if err != nil {
		return fmt.Errorf("soak with seed %d: %w", cfg.Seed, err)
	}
	if a.global.json {
		err = a.printJSON(r)
	} else {
		err = a.printSoak(r)
	}
	if err != nil {
		return err
	}
	if !r.OK {
		return found()
	}
	return nil
}

func (a *app) printSoak(r demo.SoakResult) error {
	verdict := "OK: nothing was lost, and nothing came out of order"
	if !r.OK {
		verdict = fmt.Sprintf("NOT OK: %d problems", len(r.Problems))
	}
	for _, p := range r.Problems {
		verdict += "\n  - " + p
	}
	return a.print("%s\n%d events, %d of %d deliveries (%d repeated, %d dead letters), faults %v, %d checks, seed %d\n", verdict,
		r.Appended, r.Delivered, r.Expected, r.Redelivered, r.Dead, r.Faults, r.Checks, r.Seed)
}

// cluster checks and completes what the demo and the soak have in common.
func (a *app) cluster(cmd *cobra.Command, cfg *demo.Config) error {
	switch {
	case cfg.Workers < 1:
		return usagef(cmd, "--workers %d: at least 1", cfg.Workers)
	case cfg.Duration < leastDuration:
		return usagef(cmd, "--duration %s: at least %s", cfg.Duration, leastDuration)
	case cfg.Sabotage != "" && cfg.Sabotage != "drop" && cfg.Sabotage != "reorder":
		return usagef(cmd, "--sabotage %q: must be drop or reorder", cfg.Sabotage)
	}
	if !cmd.Flags().Changed("seed") {
		cfg.Seed = clock.RandomSeed() % seeds
	}
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	cfg.Program = []string{program, demoWorkerName, "--log-level", "error", "--log-format", "text"}
	cfg.DatabaseURL, cfg.Clock = a.global.databaseURL, a.clock
	cfg.Show = a.stdout
	if a.global.json {
		cfg.Show = io.Discard
		if isTerminal(a.stderr) {
			cfg.Show = a.stderr
		}
	}
	return nil
}
