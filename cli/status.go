package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/keylinehq/keyline"
)

// statusReport is the output of status.
type statusReport struct {
	keyline.Overview
	// Problems are what an operator should look at, in words.
	Problems []string `json:"problems"`
}

func (a *app) statusCommand() *cobra.Command {
	var check bool
	cmd := &cobra.Command{
		Use: "status", Short: "Workers, consumers and what waits", Args: arguments(cobra.NoArgs),
		Long: "Shows who works, how each consumer fares, what waits, and what an operator should look at. It shows no payloads.\n" +
			"With --check the exit code is 1 where there is something to look at: work and no live worker; a worker that is silent, or has\n" +
			"ended and has claims that nobody has freed yet; a consumer that no live worker runs, that is parked, or that has open dead\n" +
			"letters; a record that has been due for a minute. A worker that was lost is none once others have what it held.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.reading(cmd, func(ctx context.Context, o keyline.Operator) error {
				v, err := o.Overview(ctx)
				if err != nil {
					return err
				}
				r := statusReport{v, problems(v)}
				if a.global.json {
					err = a.printJSON(r)
				} else {
					err = a.printStatus(r)
				}
				if err == nil && check && len(r.Problems) > 0 {
					err = found()
				}
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&check, "check", false, "fail where there is something to look at")
	return cmd
}

// lateness is how long due work may wait before it is a problem: far longer than
// a fallback poll and a lease.
const lateness = time.Minute

// problems are what an operator should look at: what is wrong now, not what was.
func problems(o keyline.Overview) []string {
	list := []string{}
	add := func(is bool, format string, args ...any) {
		if is {
			list = append(list, fmt.Sprintf(format, args...))
		}
	}
	live := slices.ContainsFunc(o.Workers, func(w keyline.WorkerView) bool { return w.Status == "live" && !w.Silent })
	add(!live && o.Records.Due+o.Records.Claimed+o.Records.Wanting > 0, "records have work and no worker lives")
	for _, w := range o.Workers {
		add(w.Silent, "worker %s#%d has been silent for longer than its lease: see whether its process runs; `keyline recover` frees what it holds", w.Name, w.ID)
		add(w.Status != "live" && w.Claims > 0, "worker %s#%d has %s, and %d records that it claimed are not free yet: a live worker frees them, or `keyline recover`", w.Name, w.ID, ended(w), w.Claims)
	}
	for _, c := range o.Consumers {
		runs := c.Status == "active" || c.Status == "backfilling"
		add(live && runs && !c.ContractOnly && len(c.HostedBy) == 0, "consumer %s is %s and no live worker runs it", c.Name, c.Status)
		add(c.DeadLetters > 0, "consumer %s has %d open dead letters", c.Name, c.DeadLetters)
		add(c.Parked > 0, "consumer %s is parked on %d records", c.Name, c.Parked)
	}
	oldest := time.Duration(o.Records.OldestDueMS) * time.Millisecond
	add(live && oldest > lateness, "the oldest due record has waited for %s", oldest.Round(time.Second))
	return list
}

// ended is what became of a worker that does not live.
func ended(w keyline.WorkerView) string {
	if w.Status == "lost" {
		return "been lost"
	}
	return w.Status
}

func (a *app) printStatus(r statusReport) error {
	waits := fmt.Sprintf("records with work: %d due, %d claimed, %d later, %d wanting a consumer", r.Records.Due, r.Records.Claimed, r.Records.Later, r.Records.Wanting)
	if err := a.print("schema %s, ordering %s\n%s\n", r.Schema, r.Ordering, waits); err != nil {
		return err
	}
	var consumers [][]string
	if err := a.section("workers", workerHeaders, workerRows(r.Workers)); err != nil {
		return err
	}
	for _, c := range r.Consumers {
		consumers = append(consumers, []string{c.Name, c.Status, count(c.Completed), count(c.Failed), atLeast(c.Pending, c.PendingExact, c.CountedAt), count(c.Backoff), count(c.Parked),
			count(c.DeadLetters), when(c.LastSuccessAt), when(c.LastFailureAt)})
	}
	if err := a.section("consumers", []string{"CONSUMER", "STATUS", "COMPLETED", "FAILED", "PENDING", "BACKOFF", "PARKED", "DEAD", "LAST SUCCESS", "LAST FAILURE"}, consumers); err != nil {
		return err
	}
	for _, p := range r.Problems {
		if err := a.print("! %s", printable(p)); err != nil {
			return err
		}
	}
	return nil
}

// section is a table, or the word that there is nothing in it.
func (a *app) section(of string, headers []string, rows [][]string) error {
	if len(rows) == 0 {
		return a.print("no %s\n", of)
	}
	if err := a.printTable(headers, rows); err != nil {
		return err
	}
	return a.print("")
}

// atLeast is a count of what waits, marked where it was cut off; nobody has counted where at is nil.
func atLeast(n int64, exact bool, at *time.Time) string {
	switch {
	case at == nil:
		return "-"
	case exact:
		return count(n)
	}
	return "≥" + count(n)
}

func count(n int64) string { return strconv.FormatInt(n, 10) }
