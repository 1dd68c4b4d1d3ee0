package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/keylinehq/keyline"
)

func (a *app) workersCommand() *cobra.Command {
	return &cobra.Command{
		Use: "workers", Short: "The workers: who lives, what each runs and holds", Args: arguments(cobra.NoArgs),
		Long: "Lists the workers that live, those that were lost within the hour, and those whose claims are still to be freed.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.reading(cmd, func(ctx context.Context, o keyline.Operator) error {
				list, err := o.Workers(ctx)
				if err != nil {
					return err
				}
				if a.global.json {
					return a.printJSON(map[string]any{"workers": notNil(list)})
				}
				return a.section("workers", workerHeaders, workerRows(list))
			})
		},
	}
}

var workerHeaders = []string{"WORKER", "HOST", "PID", "STATUS", "CLAIMS", "BEAT", "CONSUMERS"}

func workerRows(workers []keyline.WorkerView) (rows [][]string) {
	for _, w := range workers {
		rows = append(rows, []string{nameOf(w), w.Host, strconv.Itoa(w.PID), statusOf(w), count(w.Claims), when(&w.BeatAt), list(w.Consumers)})
	}
	return rows
}

// statusOf is a worker's status for people.
func statusOf(w keyline.WorkerView) string {
	switch {
	case w.Silent:
		return "silent"
	case w.DrainAt != nil && w.Status == "live":
		return "draining"
	}
	return w.Status
}

// nameOf names one worker among several of a name.
func nameOf(w keyline.WorkerView) string { return w.Name + "#" + count(w.ID) }

// drainWait is how long a drain is waited for where nobody says: a lease's third, a grace, and some.
const drainWait = 2 * time.Minute

func (a *app) drainCommand() *cobra.Command {
	var (
		f   actFlags
		all bool
	)
	cmd := &cobra.Command{
		Use: "drain WORKER…", Short: "Have workers finish what they run, and end", Args: arguments(cobra.ArbitraryArgs),
		Long: "Has workers claim nothing more, finish what they run within their shutdown grace, hand back the rest and end; waits\n" +
			"until they have. A worker is named by its id (7), its name, or both (crm#7), as `keyline workers` shows them; a name\n" +
			"alone means all workers of that name. What restarts ended programs starts them again.\n\n" +
			"To deliver what is due and end, as a scheduled job, run `keyline worker --once`.",
		Example: "  keyline drain crm#7 --reason 'new kernel'\n  keyline drain --all --reason 'maintenance of the database'",
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 0 && !all:
				return usagef(cmd, "which ones? Name them, or say --all (to deliver what is due and end: keyline worker --once)")
			case len(args) > 0 && all:
				return usagef(cmd, "name workers or say --all, not both")
			}
			return a.acting(cmd, &f, func(ctx context.Context, o keyline.Operator) (plan, error) {
				list, err := o.Workers(ctx)
				if err != nil {
					return plan{}, err
				}
				list, missing := chosenWorkers(list, args)
				if len(list) == 0 {
					return plan{}, missing
				}
				var named []string
				for _, w := range list {
					named = append(named, nameOf(w))
				}
				p := plan{what: "drain worker " + strings.Join(named, ", "), print: a.printDrained,
					act: func(ctx context.Context) (any, error) {
						out, err := drainAll(ctx, o, list, f.reason)
						return out, errors.Join(err, missing)
					}}
				if len(list) > 1 {
					p.what, p.confirm = fmt.Sprintf("drain %d workers: %s", len(list), strings.Join(named, ", ")), strconv.Itoa(len(list))
				}
				if missing != nil {
					p.what += fmt.Sprintf(" (%v)", missing)
				}
				return p, nil
			})
		},
	}
	f.register(cmd, drainWait)
	cmd.Flags().BoolVar(&all, "all", false, "all workers that live")
	return cmd
}

// chosenWorkers are the live ones that names mean, all without any. The error is about names that mean none: the others are drained all
// the same, since of those that were asked for at once, some may have left before that is said again.
func chosenWorkers(list []keyline.WorkerView, names []string) ([]keyline.WorkerView, error) {
	list = slices.DeleteFunc(list, func(w keyline.WorkerView) bool { return w.Status != "live" })
	if len(names) == 0 {
		if len(list) == 0 {
			return nil, fmt.Errorf("no worker lives: %w", keyline.ErrConflict)
		}
		return list, nil
	}
	means := func(name string, w keyline.WorkerView) bool {
		return name == w.Name || name == count(w.ID) || name == nameOf(w)
	}
	var missing error
	for _, name := range names {
		if !slices.ContainsFunc(list, func(w keyline.WorkerView) bool { return means(name, w) }) {
			missing = errors.Join(missing, fmt.Errorf("live worker %s: %w", name, keyline.ErrNotFound))
		}
	}
	return slices.DeleteFunc(list, func(w keyline.WorkerView) bool {
		return !slices.ContainsFunc(names, func(name string) bool { return means(name, w) })
	}), missing
}

// drained is the output of drain.
type drained struct {
	Workers []keyline.DrainedWorker `json:"workers"`
}

func (d drained) begun() bool { return len(d.Workers) > 0 }

// drainAll drains workers beside each other: one after the other they would take a lease's third each.
func drainAll(ctx context.Context, o keyline.Operator, list []keyline.WorkerView, reason string) (any, error) {
	var (
		running sync.WaitGroup
		ends    = make([]keyline.DrainedWorker, len(list))
		errs    = make([]error, len(list))
		out     = drained{[]keyline.DrainedWorker{}}
	)
	for i, w := range list {
		running.Go(func() { ends[i], errs[i] = o.DrainWorker(ctx, w.ID, reason) })
	}
	running.Wait()
	for i, err := range errs {
		if err == nil {
			out.Workers = append(out.Workers, ends[i])
		}
	}
	return out, errors.Join(errs...)
}

func (a *app) printDrained(outcome any) error {
	d, _ := outcome.(drained)
	for _, w := range d.Workers {
		how := "has left"
		if w.StillRunning {
			how = "has left, with handlers that outlived its grace: what they hold stays held for a lease"
		}
		if err := a.print("worker %s#%d %s", printable(w.Name), w.Worker, how); err != nil {
			return err
		}
	}
	return nil
}
