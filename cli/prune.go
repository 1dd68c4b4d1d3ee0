package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/keylinehq/keyline"
)

// days is a duration that may be given in days: 90d, 36h.
type days time.Duration

func (d *days) Set(s string) error {
	if n, ok := strings.CutSuffix(s, "d"); ok {
		const most = 36_500 // a hundred years: beyond that, times of the database end
		count, err := strconv.ParseUint(n, 10, 32)
		if err != nil || count > most {
			return fmt.Errorf("%q is no number of days up to %d", n, most)
		}
		*d = days(time.Duration(count) * 24 * time.Hour)
		return nil
	}
	v, err := time.ParseDuration(s)
	if err != nil || v < 0 {
		return fmt.Errorf("%q is no time to keep: give it like 90d or 36h", s)
	}
	*d = days(v)
	return nil
}

func (d *days) String() string {
	const day = 24 * time.Hour
	if v := time.Duration(*d); v%day != 0 || v == 0 {
		return v.String()
	}
	return strconv.FormatInt(int64(time.Duration(*d)/day), 10) + "d"
}

func (*days) Type() string { return "duration" }

func (a *app) pruneCommand() *cobra.Command {
	var (
		f            actFlags
		older        = days(90 * 24 * time.Hour)
		keepFailures = days(7 * 24 * time.Hour)
	)
	cmd := &cobra.Command{
		Use: "prune", Short: "Delete settled events that are older than a policy", Args: arguments(cobra.NoArgs),
		Long: "Deletes settled events that were appended longer ago than --older-than, of each record the oldest first, in small\n" +
			"chunks beside live traffic; and failed attempts and ended workers of longer ago than --keep-failures. Never what a\n" +
			"consumer that is active, paused or backfilling, an open dead letter or a waiting command still needs: it says what\n" +
			"holds events back. What is deleted does not come back, and its idempotency keys are forgotten.",
		Example: "  keyline prune --dry-run\n  keyline prune --older-than 30d --yes --reason 'monthly'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts := keyline.PruneOptions{OlderThan: time.Duration(older), KeepFailures: time.Duration(keepFailures), DryRun: true}
			if older == 0 || keepFailures == 0 {
				return usagef(cmd, "a time to keep must be more than nothing")
			}
			return a.acting(cmd, &f, func(ctx context.Context, o keyline.Operator) (plan, error) {
				p := plan{
					what: fmt.Sprintf("delete settled events older than %s", older.String()), confirm: "prune", print: a.printPrune,
					act: func(ctx context.Context) (any, error) {
						opts.DryRun = false
						r, err := o.Prune(ctx, f.reason, opts)
						return pruneOutcome{r}, err
					},
				}
				if f.yes && !f.dryRun {
					return p, nil // nobody reads what would be
				}
				report, err := o.Prune(ctx, f.reason, opts)
				p.preview = pruneOutcome{report}
				p.what = fmt.Sprintf("delete %d settled events of %d records from before %s, %d failed attempts and %d ended workers",
					report.Events, report.Records, when(&report.Before), report.Failures, report.Workers)
				return p, err
			})
		},
	}
	f.register(cmd, 0)
	cmd.Flags().Var(&older, "older-than", "how long events are kept at least, such as 90d or 36h")
	cmd.Flags().Var(&keepFailures, "keep-failures", "how long failed attempts and ended workers are kept")
	return cmd
}

// pruneOutcome is the output of a prune, also of one that was stopped on its way.
type pruneOutcome struct{ keyline.PruneReport }

func (o pruneOutcome) begun() bool { return o.Events+o.Failures+o.Workers > 0 }

func (a *app) printPrune(outcome any) error {
	r, _ := outcome.(pruneOutcome)
	verb, also := "deleted", fmt.Sprintf(", with %d closed dead letters and %d skips", r.DeadLetters, r.Skips)
	if r.DryRun {
		verb, also = "would delete", ""
	}
	if err := a.print("%s %d events of %d records from before %s%s\n%s %d failed attempts and %d ended workers",
		verb, r.Events, r.Records, when(&r.Before), also, verb, r.Failures, r.Workers); err != nil {
		return err
	}
	var rows [][]string
	for _, h := range r.HeldBack {
		var sample []string
		for _, s := range h.Sample {
			sample = append(sample, fmt.Sprintf("%s%s #%d", s.Record, ofTenant(s.Tenant), s.Seq))
		}
		rows = append(rows, []string{h.Reason, h.Consumer, h.Status, count(h.Events), count(h.Records), strings.Join(sample, ", ")})
	}
	if len(rows) == 0 {
		return a.print("nothing holds older events back")
	}
	return a.section("holds", []string{"HELD BACK BY", "CONSUMER", "STATUS", "EVENTS", "RECORDS", "FROM"}, rows)
}
