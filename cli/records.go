package cli

import (
	"context"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/keylinehq/keyline"
)

func (a *app) recordsCommand() *cobra.Command {
	return group("records", "Records: list them, show one", a.recordsListCommand(), a.showCommand())
}

func (a *app) recordsListCommand() *cobra.Command {
	var (
		f                  keyline.RecordFilter
		tenant, after, his string
	)
	cmd := &cobra.Command{
		Use: "list", Short: "List records by tenant and key", Args: arguments(cobra.NoArgs),
		Long: "Lists records by tenant and key. --after goes on with the next page: give it the last key of this one, and without\n" +
			"--tenant also its tenant, as --after-tenant.\n\n" +
			"WORK is what a worker has to do there now. A consumer that is paused, or parked on a record, can be behind where there is\n" +
			"none: `keyline why KEY` says where each consumer stands.",
		Example: "  keyline records list --tenant acme --prefix activity:",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.Limit < 1 || f.Limit > mostRows {
				return usagef(cmd, "--limit %d: must be 1 to %d", f.Limit, mostRows)
			}
			f.Tenant = given(cmd, "tenant", tenant)
			if f.Tenant != nil {
				his = tenant
			}
			if after != "" {
				f.After = &keyline.Key{Tenant: his, Record: after}
			}
			return a.reading(cmd, func(ctx context.Context, o keyline.Operator) error {
				list, err := o.Records(ctx, f)
				if err != nil {
					return err
				}
				if a.global.json {
					return a.printJSON(map[string]any{"records": notNil(list)})
				}
				return a.printRecords(list)
			})
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&tenant, "tenant", "", "only this tenant's")
	fs.StringVar(&f.Prefix, "prefix", "", "only those whose key begins so; of the tenant \"\" where no tenant is given")
	fs.StringVar(&after, "after", "", "only those behind this key")
	fs.StringVar(&his, "after-tenant", "", "the tenant of --after, where all tenants are listed")
	fs.IntVar(&f.Limit, "limit", 100, "the most rows")
	return cmd
}

func (a *app) printRecords(list []keyline.RecordSummary) error {
	var rows [][]string
	for _, r := range list {
		work := "-" // not "done": a consumer that is parked, or paused, is behind without any
		switch {
		case r.WorkerID != nil:
			work = "held by " + r.Worker + "#" + count(*r.WorkerID)
		case r.Working && r.DueAt != nil:
			work = "due " + when(r.DueAt)
		case r.Working:
			work = "waits"
		}
		rows = append(rows, []string{r.Record, r.Tenant, count(r.Head), count(r.Cursor), work})
	}
	return a.section("records", []string{"RECORD", "TENANT", "EVENTS", "CURSOR", "WORK"}, rows)
}

func (a *app) eventsCommand() *cobra.Command {
	return group("events", "Events: list a record's, show one, retry one", a.eventsListCommand(), a.eventsShowCommand(), a.retryCommand())
}

func (a *app) eventsListCommand() *cobra.Command {
	var (
		f      keyline.EventFilter
		tenant string
	)
	cmd := &cobra.Command{
		Use: "list KEY", Short: "List a record's events, the oldest first", Args: arguments(cobra.ExactArgs(1)),
		Long: "Lists a record's events with the state of each delivery, without payloads, the oldest first. --after goes on with the\n" +
			"next page: give it the last seq of this one. `keyline show` shows the newest.",
		Example: "  keyline events list activity:42 --after 100",
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.Limit < 1 || f.Limit > mostEvents {
				return usagef(cmd, "--limit %d: must be 1 to %d", f.Limit, mostEvents)
			}
			return a.reading(cmd, func(ctx context.Context, o keyline.Operator) error {
				list, err := o.Events(ctx, keyline.Key{Tenant: tenant, Record: args[0]}, f)
				if err != nil {
					return whose(cmd, err)
				}
				if a.global.json {
					return a.printJSON(map[string]any{"tenant": tenant, "record": args[0], "events": notNil(list)})
				}
				return a.printEvents(list)
			})
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&tenant, "tenant", "", "tenant that the record belongs to")
	fs.Int64Var(&f.After, "after", 0, "only seqs above this one")
	fs.IntVar(&f.Limit, "limit", 100, "the most rows")
	return cmd
}

func (a *app) eventsShowCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show EVENT", Short: "An event, and the state of each delivery", Args: arguments(cobra.ExactArgs(1)),
		Long: "Shows an event, by its id, with the state of each delivery. It shows no payload.",
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := uuid.Parse(args[0])
			if err != nil {
				return usagef(cmd, "%q is no id of an event: %w", args[0], err)
			}
			return a.reading(cmd, func(ctx context.Context, o keyline.Operator) error {
				v, err := o.InspectEvent(ctx, id)
				if err != nil {
					return err
				}
				if a.global.json {
					return a.printJSON(v)
				}
				if err := a.print("event %d of %s%s\n", v.Seq, line(v.Record), ofTenant(v.Tenant)); err != nil {
					return err
				}
				return a.printEvents([]keyline.RecordEvent{v.RecordEvent})
			})
		},
	}
}
