package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/keylinehq/keyline"
)

func (a *app) healthCommand() *cobra.Command {
	return &cobra.Command{
		Use: "health [CONSUMER]", Short: "How each consumer fares, and what waits for it", Args: arguments(cobra.MaximumNArgs(1)),
		Long: "Shows of each consumer what it has done, what waits for it, and how old the oldest of that is. It is cheap at any size:\n" +
			"what waits was counted by a worker within the last seconds; where that is long ago, or never, no worker runs. ≥ marks\n" +
			"a count that was cut off. `keyline top` shows the same as it changes.",
		Example: "  keyline health\n  keyline health mailer --json",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.reading(cmd, func(ctx context.Context, o keyline.Operator) error {
				list, err := o.ConsumerHealth(ctx)
				if err != nil {
					return err
				}
				if len(args) == 1 {
					if list = named(list, args[0]); len(list) == 0 {
						return fmt.Errorf("there is no consumer %q: %w", args[0], keyline.ErrNotFound)
					}
				}
				if a.global.json {
					return a.printJSON(map[string]any{"consumers": notNil(list)})
				}
				return a.printHealth(list)
			})
		},
	}
}

func named(list []keyline.ConsumerHealth, name string) []keyline.ConsumerHealth {
	for _, h := range list {
		if h.Name == name {
			return []keyline.ConsumerHealth{h}
		}
	}
	return nil
}

func (a *app) printHealth(list []keyline.ConsumerHealth) error {
	var rows [][]string
	now := a.clock.Now()
	for _, h := range list {
		rows = append(rows, []string{
			h.Name, h.Status, count(h.Workers), atLeast(h.Pending, h.PendingExact, h.CountedAt), age(now, h.OldestAt), count(h.Processing),
			count(h.Retrying), count(h.Parked), count(h.Dead), count(h.Completed), count(h.Failed), when(h.LastSuccessAt), when(h.LastFailureAt),
		})
	}
	headers := []string{"CONSUMER", "STATUS", "WORKERS", "PENDING", "OLDEST", "RUNNING", "BACKOFF", "PARKED", "DEAD", "COMPLETED", "FAILED", "LAST SUCCESS", "LAST FAILURE"}
	if err := a.section("consumers", headers, rows); err != nil {
		return err
	}
	if s := staleness(now, list); s != "" {
		return a.print("! %s", s)
	}
	return nil
}

// countedLate is how old a count may be: another worker takes over well before.
const countedLate = 5 * keyline.HealthEvery

// staleness says in words that what waits was not counted lately, "" where it was.
func staleness(now time.Time, list []keyline.ConsumerHealth) string {
	var last *time.Time
	counted := false
	for _, h := range list {
		if h.Status == "retired" || h.Status == "disabled" {
			continue // nothing waits for it
		}
		counted = true
		if h.CountedAt != nil && (last == nil || h.CountedAt.After(*last)) {
			last = h.CountedAt
		}
	}
	switch {
	case !counted:
		return ""
	case last == nil:
		return "no worker has counted what waits"
	case now.Sub(*last) > countedLate:
		return "what waits was last counted " + age(now, last) + " ago: no worker runs"
	}
	return ""
}

// age is how long ago something was, for people.
func age(now time.Time, t *time.Time) string {
	if t == nil {
		return "-"
	}
	d := max(now.Sub(*t), 0)
	switch {
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < 48*time.Hour:
		return d.Round(time.Second).String()
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}
