package cli

import (
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/keylinehq/keyline/cli/internal/demo"
)

// demoWorkerName is the hidden command that a worker process of the demo runs.
const demoWorkerName = "demo-worker"

// leastDuration is the shortest show that has time for all of it.
const leastDuration = 2 * time.Second

// seeds are drawn below this, so that they read and type well.
const seeds = 1_000_000_000

func (a *app) demoCommand() *cobra.Command {
	var cfg demo.Config
	cmd := &cobra.Command{
		Use: "demo", Short: "A cluster of worker processes that survives a kill -9", Args: arguments(cobra.NoArgs),
		Long: "Starts a PostgreSQL server of its own (or makes a database on the one that DATABASE_URL names), a cluster of worker\n" +
			"processes and the traffic of a small CRM; kills a worker while it holds records; lets a delivery fail twice and an\n" +
			"event fail for good; waits until everything has settled; and checks what the handlers have recorded against what was\n" +
			"appended. The exit code is 1 where the check finds anything lost or out of order.\n\n" +
			"--sabotage breaks delivery on purpose, to show that the check can fail.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.demo(cmd, cfg)
		},
	}
	f := cmd.Flags()
	f.DurationVar(&cfg.Duration, "duration", 15*time.Second, "how long there is traffic")
	f.IntVar(&cfg.Workers, "workers", 3, "worker processes to begin with")
	f.Uint64Var(&cfg.Seed, "seed", 0, "seed of the traffic (default: a new one, which is printed)")
	f.StringVar(&cfg.Sabotage, "sabotage", "", "break delivery on purpose: drop or reorder")
	return cmd
}

func (a *app) demo(cmd *cobra.Command, cfg demo.Config) error {
	if err := a.cluster(cmd, &cfg); err != nil {
		return err
	}
	r, err := demo.Run(cmd.Context(), cfg)
	if err != nil {
		return err
	}
	if a.global.json {
		if err := a.printJSON(r); err != nil {
			return err
		}
		if cfg.Show == io.Discard {
			for _, p := range r.Problems {
				a.talk("keyline demo: %s", p)
			}
		}
	}
	if !r.OK {
		return found()
	}
	return nil
}

func (a *app) demoWorkerCommand() *cobra.Command {
	var cfg demo.WorkerConfig
	cmd := &cobra.Command{
		Use: demoWorkerName, Hidden: true, Short: "A worker process of the demo", Args: arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			url, err := a.requireURL(cmd)
			if err != nil {
				return err
			}
			log, err := a.global.logger(a.stderr)
			if err != nil {
				return err
			}
			cfg.DatabaseURL, cfg.Input, cfg.Ready, cfg.Logger = url, a.stdin, a.stdout, log
			return demo.Work(cmd.Context(), cfg)
		},
	}
	cmd.Flags().StringVar(&cfg.Name, "name", "", "the worker's name")
	cmd.Flags().StringVar(&cfg.Sabotage, "sabotage", "", "how delivery is broken")
	return cmd
}
