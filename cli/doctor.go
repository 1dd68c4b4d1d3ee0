package cli

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/keylinehq/keyline/cli/internal/doctor"
)

func (a *app) doctorCommand() *cobra.Command {
	var listenURL string
	cmd := &cobra.Command{
		Use: "doctor", Short: "What keeps workers from working well, and how to mend it", Args: arguments(cobra.NoArgs),
		Long: "Looks at the server, the way to it and the installation: versions, schema, privileges, sessions and other things that\n" +
			"keep vacuum from its work, bloat, notifications, poolers, clocks, connections, workers, and the endpoint of traces. It\n" +
			"changes nothing. Run it where workers run, as the role that they have. The exit code is 1 where a check failed;\n" +
			"warnings leave it 0.",
		Example: "  keyline doctor\n  keyline doctor --listen-url postgres://db.internal:5432/app --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			pool, err := a.poolConfig(cmd)
			if err != nil {
				return err
			}
			r, err := doctor.Run(cmd.Context(), doctor.Options{Pool: pool, Schema: a.global.schema, ListenURL: listenURL, OTLP: otlpEndpoints(), Clock: a.clock})
			if err != nil {
				return err
			}
			if a.global.json {
				err = a.printJSON(r)
			} else {
				err = a.printDoctor(r)
			}
			if err == nil && !r.OK {
				err = found()
			}
			return err
		},
	}
	cmd.Flags().StringVar(&listenURL, "listen-url", "", "the workers' direct connection for LISTEN and session locks, where they have one")
	return cmd
}

// otlpEndpoints are where the environment says that traces and metrics go.
func otlpEndpoints() map[string]string {
	const prefix = "OTEL_EXPORTER_OTLP_"
	out := map[string]string{}
	for signal, variable := range map[string]string{"traces": "TRACES_ENDPOINT", "metrics": "METRICS_ENDPOINT"} {
		for _, name := range []string{"ENDPOINT", variable} {
			if v := os.Getenv(prefix + name); v != "" {
				out[signal] = v
			}
		}
	}
	return out
}

func (a *app) printDoctor(r doctor.Report) error {
	for _, c := range r.Checks {
		if err := a.print("%-4s %s: %s", c.Status, c.ID, printable(plain(c.Detail))); err != nil {
			return err
		}
		if c.Fix != "" {
			if err := a.print("     fix: %s", printable(c.Fix)); err != nil {
				return err
			}
		}
	}
	return nil
}
