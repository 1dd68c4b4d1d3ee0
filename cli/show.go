package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/keylinehq/keyline"
)

// mostEvents bounds what show reads: a record may have millions.
const mostEvents = 1000

func (a *app) showCommand() *cobra.Command {
	var (
		tenant string
		events int
	)
	cmd := &cobra.Command{
		Use: "show KEY", Short: "A record, where each consumer stands on it, and its last events", Args: arguments(cobra.ExactArgs(1)),
		Long: "Shows a record, where each consumer stands on it, and its last events with the state of each delivery. It shows no payloads.\n" +
			"A consumer's state is the reason that `keyline why` gives.",
		Example: "  keyline show activity:42\n  keyline show activity:42 --tenant acme --events 100 --json",
		RunE: func(cmd *cobra.Command, args []string) error {
			if events < 0 || events > mostEvents {
				return usagef(cmd, "--events %d: must be 0 to %d", events, mostEvents)
			}
			return a.reading(cmd, func(ctx context.Context, o keyline.Operator) error {
				v, err := o.InspectRecord(ctx, keyline.Key{Tenant: tenant, Record: args[0]}, events)
				if err != nil {
					return whose(cmd, err)
				}
				if a.global.json {
					return a.printJSON(v)
				}
				return a.printRecord(v)
			})
		},
	}
	cmd.Flags().StringVar(&tenant, "tenant", "", "tenant that the record belongs to")
	cmd.Flags().IntVar(&events, "events", 20, "how many of its last events")
	return cmd
}

func (a *app) printRecord(v keyline.RecordView) error {
	if err := a.print("record %s%s: %d events\n%s\n", line(v.Record), ofTenant(v.Tenant), v.Head, printable(work(v.Work))); err != nil {
		return err
	}
	var positions [][]string
	for _, p := range v.Positions {
		next := when(p.NextAttemptAt)
		positions = append(positions, []string{p.Consumer, p.Status, count(p.Seq), p.State, strconv.Itoa(p.Attempt), next, p.ErrorCode})
	}
	if err := a.section("consumers", []string{"CONSUMER", "STATUS", "DONE UP TO", "STATE", "ATTEMPT", "NEXT", "ERROR"}, positions); err != nil {
		return err
	}
	return a.printEvents(v.Events)
}

func (a *app) printEvents(list []keyline.RecordEvent) error {
	var events [][]string
	for _, e := range list {
		var states []string
		for _, name := range slices.Sorted(maps.Keys(e.Deliveries)) {
			states = append(states, name+"="+e.Deliveries[name])
		}
		events = append(events, []string{count(e.Seq), e.Type, "v" + strconv.Itoa(e.Version), e.ID.String(), when(&e.CreatedAt), e.State, strings.Join(states, " ")})
	}
	return a.section("events", []string{"SEQ", "TYPE", "VERSION", "ID", "APPENDED", "STATE", "DELIVERIES"}, events)
}

func ofTenant(tenant string) string {
	if tenant == "" {
		return ""
	}
	return " of tenant " + line(tenant)
}

// work is a record's mailbox in words.
func work(w *keyline.RecordWork) string {
	switch {
	case w == nil:
		return "no worker has anything to do on it now"
	case w.WorkerID != nil:
		return fmt.Sprintf("held by worker %s#%d since %s, token %d", w.Worker, *w.WorkerID, when(w.ClaimedAt), w.Token)
	case w.DueAt == nil:
		return "has work that waits for something to happen"
	}
	return "has work, due at " + when(w.DueAt)
}
