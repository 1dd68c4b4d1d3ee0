package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/keylinehq/keyline"
)

func (a *app) whyCommand() *cobra.Command {
	var (
		tenant, consumer string
		f                keyline.BehindFilter
	)
	cmd := &cobra.Command{
		Use: "why KEY | why --consumer NAME", Short: "Why a record is stuck, or a consumer behind, and what to do next", Args: arguments(cobra.MaximumNArgs(1)),
		Long: "Says where each consumer stands on a record, for what reason, since when, and in a sentence what to do next; or, with\n" +
			"--consumer, on which records one consumer is behind their head, each with the reason. --after goes on with the next\n" +
			"page: give it the \"next\" of this one. docs/operations.md explains each reason, and `keyline trace EVENT` shows what an event failed with.",
		Example: "  keyline why activity:42\n  keyline why activity:42 --tenant acme --json\n  keyline why --consumer mailer --limit 20",
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case (len(args) == 1) == (consumer != ""):
				return usagef(cmd, "give a record's key or --consumer")
			case len(args) == 1 && (cmd.Flags().Changed("after") || cmd.Flags().Changed("limit")):
				return usagef(cmd, "--after and --limit go with --consumer")
			case f.Limit < 1 || f.Limit > mostBehind:
				return usagef(cmd, "--limit %d: must be 1 to %d", f.Limit, mostBehind)
			}
			if consumer != "" {
				f.Tenant = given(cmd, "tenant", tenant)
				return a.whyConsumer(cmd, consumer, f)
			}
			return a.reading(cmd, func(ctx context.Context, o keyline.Operator) error {
				w, err := o.Why(ctx, keyline.Key{Tenant: tenant, Record: args[0]})
				if err != nil {
					return whose(cmd, err)
				}
				if a.global.json {
					return a.printJSON(w)
				}
				return a.printWhy(w)
			})
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&tenant, "tenant", "", "tenant that the record belongs to; with --consumer: only this tenant's records")
	fs.StringVar(&consumer, "consumer", "", "list the records that this consumer is behind on")
	fs.Int64Var(&f.After, "after", 0, "with --consumer: go on behind this page")
	fs.IntVar(&f.Limit, "limit", 100, "with --consumer: the most rows")
	return cmd
}

// mostBehind bounds a page of why: each row costs a look at the record.
const mostBehind = 1000

func (a *app) whyConsumer(cmd *cobra.Command, consumer string, f keyline.BehindFilter) error {
	return a.reading(cmd, func(ctx context.Context, o keyline.Operator) error {
		page, err := o.Behind(ctx, consumer, f)
		if err != nil {
			return err
		}
		if a.global.json {
			return a.printJSON(page)
		}
		var rows [][]string
		for _, r := range page.Records {
			rows = append(rows, []string{r.Key + ofTenant(r.Tenant), count(r.Position) + "/" + count(r.Head), count(r.NextSeq), string(r.Reason), when(r.Since),
				number(r.Worker), attempts(r.Attempt), orDash(r.ErrorCode), when(r.NextAttemptAt), number(r.DeadLetter), orDash(r.EventID)})
		}
		if err := a.section("records behind", []string{"RECORD", "DONE", "NEXT EVENT", "REASON", "SINCE", "WORKER", "RUNS", "ERROR", "NEXT", "DEAD LETTER", "EVENT"}, rows); err != nil {
			return err
		}
		switch {
		case page.Next != 0:
			a.talk("There may be more: --after %d", page.Next)
		case len(rows) == 0:
			// Whoever asks after a consumer that gets nothing is to hear that it is to get nothing.
			c, err := o.InspectConsumer(ctx, consumer)
			if err == nil && c.Status != "active" {
				a.talk("Consumer %s is %s.", printable(consumer), c.Status)
			}
			return err
		}
		return nil
	})
}

// whose adds to the error about a record that is not there what is most often missing from its name.
func whose(cmd *cobra.Command, err error) error {
	if errors.Is(err, keyline.ErrNotFound) && !cmd.Flags().Changed("tenant") {
		return fmt.Errorf("%w; where it is a tenant's, name that with --tenant", err)
	}
	return err
}

func (a *app) printWhy(w keyline.Why) error {
	if err := a.print("%s\n", line(w.Sentence)); err != nil {
		return err
	}
	var rows [][]string
	for _, c := range w.Consumers {
		rows = append(rows, []string{c.Name, count(c.Position) + "/" + count(w.Head), string(c.Reason), when(c.Since), number(c.Worker),
			attempts(c.Attempt), orDash(c.ErrorCode), when(c.NextAttemptAt), number(c.DeadLetter), orDash(c.EventID)})
	}
	return a.section("consumers", []string{"CONSUMER", "DONE", "REASON", "SINCE", "WORKER", "RUNS", "ERROR", "NEXT", "DEAD LETTER", "EVENT"}, rows)
}

func number(n *int64) string {
	if n == nil {
		return "-"
	}
	return strconv.FormatInt(*n, 10)
}

func (a *app) verifyCommand() *cobra.Command {
	var chunk int64
	cmd := &cobra.Command{
		Use: "verify", Short: "Look for what must not be", Args: arguments(cobra.NoArgs),
		Long: "Checks an installation for what must not be: gaps in a stream, work that nobody would look for, claims of lost workers,\n" +
			"impossible states, orphans. It reads in chunks beside live traffic, and looks again before it reports. The exit code\n" +
			"is 1 where it found something.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if chunk < 1 {
				return usagef(cmd, "--chunk %d: must be at least 1", chunk)
			}
			return a.reading(cmd, func(ctx context.Context, o keyline.Operator) error {
				v, err := o.Verify(ctx, keyline.VerifyOptions{Chunk: chunk})
				if err != nil {
					return err
				}
				if a.global.json {
					err = a.printJSON(v)
				} else {
					err = a.printVerification(v)
				}
				if err == nil && !v.OK {
					err = found()
				}
				return err
			})
		},
	}
	cmd.Flags().Int64Var(&chunk, "chunk", 10_000, "how many record ids one statement looks at")
	return cmd
}

func (a *app) printVerification(v keyline.Verification) error {
	for _, c := range v.Checks {
		word := "ok"
		if c.Violations > 0 {
			word = strconv.Itoa(c.Violations) + " violations"
		}
		if err := a.print("%s: %s", c.Name, word); err != nil {
			return err
		}
		for _, s := range c.Sample {
			if err := a.print("  record id %d: %s", s.Record, printable(s.What)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (a *app) auditCommand() *cobra.Command {
	var f keyline.AuditFilter
	cmd := &cobra.Command{
		Use: "audit", Short: "Who did what, and why", Args: arguments(cobra.NoArgs),
		Long: "Lists the acts of operators, the newest first, with the database role that each came with. --below goes on with the\n" +
			"next page: give it the last id of this one.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.Limit < 1 || f.Limit > mostRows {
				return usagef(cmd, "--limit %d: must be 1 to %d", f.Limit, mostRows)
			}
			return a.reading(cmd, func(ctx context.Context, o keyline.Operator) error {
				list, err := o.Audit(ctx, f)
				if err != nil {
					return err
				}
				if a.global.json {
					return a.printJSON(map[string]any{"audit": notNil(list)})
				}
				var rows [][]string
				for _, e := range list {
					rows = append(rows, []string{count(e.ID), when(&e.At), e.Actor, e.SessionUser, e.Action, e.Target, e.Reason, e.Outcome})
				}
				return a.section("acts", []string{"ID", "AT", "ACTOR", "ROLE", "ACTION", "TARGET", "REASON", "OUTCOME"}, rows)
			})
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&f.Actor, "actor", "", "only this actor's")
	fs.StringVar(&f.Action, "action", "", "only this action, such as retry_dead_letter or consumer_paused")
	fs.Int64Var(&f.Below, "below", 0, "only ids below this one")
	fs.IntVar(&f.Limit, "limit", 100, "the most rows")
	return cmd
}

// mostRows bounds a page.
const mostRows = 10_000

func notNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
