package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/keylinehq/keyline"
)

func (a *app) deadLettersCommand() *cobra.Command {
	return group("dead-letters", "Deliveries that ended without success: list, retry, resolve",
		a.deadLettersListCommand(), a.deadLettersActCommand(retryAct), a.deadLettersActCommand(resolveAct))
}

// deadFlags are a filter of dead letters.
type deadFlags struct{ consumer, code, eventType, tenant, record, since, until string }

// deadFilters are the names of those flags.
var deadFilters = []string{"consumer", "code", "type", "tenant", "record", "since", "until"}

func (f *deadFlags) register(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&f.consumer, "consumer", "", "only this consumer's")
	fs.StringVar(&f.code, "code", "", "only those with this error code")
	fs.StringVar(&f.eventType, "type", "", "only those of this event type")
	fs.StringVar(&f.tenant, "tenant", "", "only this tenant's")
	fs.StringVar(&f.record, "record", "", "only this record's")
	fs.StringVar(&f.since, "since", "", "only those that failed last at this time or later, RFC 3339, or so long ago (2h)")
	fs.StringVar(&f.until, "until", "", "only those that failed last before this time, RFC 3339, or so long ago")
}

func (f *deadFlags) filter(a *app, cmd *cobra.Command) (keyline.DeadLetterFilter, error) {
	out := keyline.DeadLetterFilter{Consumer: f.consumer, Code: f.code, Type: f.eventType,
		Tenant: given(cmd, "tenant", f.tenant), Record: given(cmd, "record", f.record)}
	for _, t := range []struct {
		flag, text string
		to         *time.Time
	}{{"since", f.since, &out.Since}, {"until", f.until, &out.Until}} {
		if t.text == "" {
			continue
		}
		if ago, err := time.ParseDuration(t.text); err == nil {
			*t.to = a.clock.Now().Add(-ago)
			continue
		}
		at, err := time.Parse(time.RFC3339Nano, t.text)
		if err != nil {
			return out, usagef(cmd, "--%s: %w", t.flag, err)
		}
		*t.to = at
	}
	return out, nil
}

// given reports whether any of them was given.
func (f *deadFlags) given(cmd *cobra.Command) bool {
	for _, name := range deadFilters {
		if cmd.Flags().Changed(name) {
			return true
		}
	}
	return false
}

func (a *app) deadLettersListCommand() *cobra.Command {
	var (
		f        deadFlags
		statuses []string
		below    int64
		limit    int
	)
	cmd := &cobra.Command{
		Use: "list", Short: "List dead letters, the newest first", Args: arguments(cobra.NoArgs),
		Long: "Lists dead letters, the newest first, without payloads. `keyline trace EVENT` shows each run of one. --below goes on with the next page: give it the last id of this one.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			filter, err := f.filter(a, cmd)
			if err != nil {
				return err
			}
			if limit < 1 || limit > mostRows {
				return usagef(cmd, "--limit %d: must be 1 to %d", limit, mostRows)
			}
			for _, s := range statuses {
				switch s {
				case "open", "retrying", "delivered", "resolved":
					filter.Statuses = append(filter.Statuses, s)
				case "all":
				default:
					return usagef(cmd, "--status %q: must be open, retrying, delivered, resolved or all", s)
				}
			}
			filter.Below, filter.Limit = below, limit
			return a.reading(cmd, func(ctx context.Context, o keyline.Operator) error {
				list, err := o.DeadLetters(ctx, filter)
				if err != nil {
					return err
				}
				if a.global.json {
					return a.printJSON(map[string]any{"dead_letters": notNil(list)})
				}
				return a.printDeadLetters(list)
			})
		},
	}
	f.register(cmd)
	cmd.Flags().StringSliceVar(&statuses, "status", []string{"open", "retrying"}, "open, retrying, delivered, resolved or all")
	cmd.Flags().Int64Var(&below, "below", 0, "only ids below this one")
	cmd.Flags().IntVar(&limit, "limit", 100, "the most rows")
	return cmd
}

func (a *app) printDeadLetters(list []keyline.DeadLetter) error {
	var rows [][]string
	for _, d := range list {
		rows = append(rows, []string{count(d.ID), d.Key + ofTenant(d.Tenant), count(d.Seq), d.Consumer, d.Type, strconv.Itoa(d.Attempt), d.Reason, d.Code,
			when(&d.FailedAt), d.Status, d.EventID.String(), d.Message})
	}
	return a.section("dead letters", []string{"ID", "RECORD", "SEQ", "CONSUMER", "TYPE", "ATTEMPT", "REASON", "CODE", "FAILED", "STATUS", "EVENT", "MESSAGE"}, rows)
}

// deadAct is what can be done with dead letters.
type deadAct struct {
	verb, short string
	givesUp     bool
	one         func(keyline.Operator, context.Context, int64, string) (keyline.Act, error)
	many        func(keyline.Operator, context.Context, keyline.DeadLetterFilter, string, keyline.BulkOptions) (keyline.BulkReport, error)
}

var (
	retryAct = deadAct{"retry", "Deliver dead letters again", false,
		keyline.Operator.RetryDeadLetter, keyline.Operator.RetryDeadLetters}
	resolveAct = deadAct{"resolve", "Give dead letters up, with a reason", true,
		keyline.Operator.ResolveDeadLetter, keyline.Operator.ResolveDeadLetters}
)

func (a *app) deadLettersActCommand(what deadAct) *cobra.Command {
	var (
		f         actFlags
		d         deadFlags
		all       bool
		perSecond int
	)
	cmd := &cobra.Command{
		Use: what.verb + " [ID…]", Short: what.short, Args: arguments(cobra.ArbitraryArgs),
		Long: what.short + ": those with these ids, or all open ones that a filter takes, however many. A retried one keeps its event,\n" +
			"goes on counting attempts, and is marked as redelivered. Only the record's worker applies it: one has to run.",
		Example: "  keyline dead-letters " + what.verb + " 12 13 --reason 'mended in 1.4'\n" +
			"  keyline dead-letters " + what.verb + " --consumer mailer --code smtp_down --since 2h --reason 'mail is back' --dry-run",
		RunE: func(cmd *cobra.Command, args []string) error {
			filtered := all || d.given(cmd)
			switch {
			case len(args) > 0 && filtered:
				return usagef(cmd, "give ids or a filter, not both")
			case len(args) == 0 && !filtered:
				return usagef(cmd, "which ones? Give ids, a filter, or --all")
			case perSecond < 0:
				return usagef(cmd, "--per-second %d: must not be negative", perSecond)
			case filtered:
				filter, err := d.filter(a, cmd)
				if err != nil {
					return err
				}
				return a.deadBulk(cmd, &f, what, filter, perSecond)
			}
			return a.deadByID(cmd, &f, what, args)
		},
	}
	f.register(cmd, commandWait)
	f.givesUp = what.givesUp
	d.register(cmd)
	cmd.Flags().BoolVar(&all, "all", false, "all open ones")
	cmd.Flags().IntVar(&perSecond, "per-second", 0, "the most per second; 0: as fast as they are applied")
	return cmd
}

func (a *app) deadByID(cmd *cobra.Command, f *actFlags, what deadAct, args []string) error {
	ids := make([]int64, len(args))
	for i, arg := range args {
		id, err := strconv.ParseInt(arg, 10, 64)
		if err != nil || id < 1 {
			return usagef(cmd, "%q is no id of a dead letter", arg)
		}
		ids[i] = id
	}
	return a.acting(cmd, f, func(ctx context.Context, o keyline.Operator) (plan, error) {
		p := plan{print: a.printActs}
		for _, id := range ids {
			list, err := o.DeadLetters(ctx, keyline.DeadLetterFilter{ID: id})
			if err != nil {
				return p, err
			}
			if len(list) == 0 {
				return p, fmt.Errorf("dead letter %d: %w", id, keyline.ErrNotFound)
			}
			if p.what != "" {
				p.what += "; "
			}
			p.what += fmt.Sprintf("%s dead letter %d (%s%s #%d for %s, %s)", what.verb, id, list[0].Key, ofTenant(list[0].Tenant), list[0].Seq, list[0].Consumer, list[0].Status)
		}
		p.act = func(ctx context.Context) (any, error) {
			done := acts{[]keyline.Act{}}
			var nothing []error
			say := func(list []error) {
				for _, err := range list {
					a.talk("%s", printable(err.Error()))
				}
			}
			for _, id := range ids {
				act, err := what.one(o, ctx, id, f.reason)
				switch {
				case errors.Is(err, &keyline.Error{Code: keyline.CodeNothingToDo}):
					// Somebody was faster, or this is said again after it was broken off: the others are still meant.
					nothing = append(nothing, err)
				case err != nil:
					say(nothing)
					return done, err // alone: with the others the exit code would be theirs, that nothing was to be done
				default:
					done.Acts = append(done.Acts, act)
				}
			}
			if len(done.Acts) == 0 {
				return done, errors.Join(nothing...)
			}
			say(nothing)
			return done, nil
		}
		return p, nil
	})
}

func (a *app) deadBulk(cmd *cobra.Command, f *actFlags, what deadAct, filter keyline.DeadLetterFilter, perSecond int) error {
	f.wait = 0 // a bulk act takes as long as it takes; Ctrl-C ends it between two items
	var failed int64
	err := a.acting(cmd, f, func(ctx context.Context, o keyline.Operator) (plan, error) {
		r, err := what.many(o, ctx, filter, f.reason, keyline.BulkOptions{DryRun: true})
		if err != nil {
			return plan{}, err
		}
		n := strconv.FormatInt(r.Matched, 10)
		return plan{
			what: what.verb + " " + n + " dead letters", confirm: n, matched: &r.Matched,
			act: func(ctx context.Context) (any, error) {
				r, err := what.many(o, ctx, filter, f.reason, keyline.BulkOptions{Upto: r.Upto, PerSecond: perSecond, Progress: a.bulkProgress()})
				failed = r.Failed
				return bulkOutcome{r}, err
			},
			print: func(outcome any) error {
				r, _ := outcome.(bulkOutcome)
				return a.print("%d of %d applied, %d needed nothing, %d failed", r.Applied, r.Matched, r.Nothing, r.Failed)
			},
		}, nil
	})
	if err == nil && failed > 0 {
		err = found()
	}
	return err
}

// bulkOutcome is the report of a bulk act, which is told also where it was stopped on its way.
type bulkOutcome struct{ keyline.BulkReport }

func (r bulkOutcome) begun() bool { return r.Applied+r.Nothing+r.Failed > 0 }

// bulkProgress tells people, on standard error, of what goes wrong and now and
// then of how far it is.
func (a *app) bulkProgress() func(keyline.BulkItem, int64) {
	n := 0
	return func(item keyline.BulkItem, of int64) {
		n++
		if item.Code != "" && item.Code != keyline.CodeNothingToDo {
			a.talk("dead letter %d: %s", item.DeadLetter, printable(item.Message))
		}
		if n%1000 == 0 {
			a.talk("%d of %d", n, of)
		}
	}
}
