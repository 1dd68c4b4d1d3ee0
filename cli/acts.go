package cli

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/keylinehq/keyline"
)

func (a *app) retryCommand() *cobra.Command {
	var (
		f        actFlags
		consumer string
	)
	cmd := &cobra.Command{
		Use: "retry EVENT", Short: "Run an event's failed deliveries again now", Args: arguments(cobra.ExactArgs(1)),
		Long: "Runs the failed deliveries of an event again now: those in backoff, parked ones and dead letters, of every consumer or\n" +
			"of one. What succeeded is not repeated. Only the record's worker applies it: one has to run.",
		Example: "  keyline retry 0197c2a0-5b1e-7c9a-8f3e-2d1c0b9a8f7e --consumer mailer --reason 'mail is back'",
		RunE: func(cmd *cobra.Command, args []string) error {
			event, err := uuid.Parse(args[0])
			if err != nil {
				return usagef(cmd, "%q is no id of an event: %w", args[0], err)
			}
			return a.acting(cmd, &f, func(ctx context.Context, o keyline.Operator) (plan, error) {
				e, err := o.InspectEvent(ctx, event)
				if err != nil {
					return plan{}, err
				}
				whose := "every consumer that failed"
				if consumer != "" {
					whose = consumer
				}
				return plan{
					what: fmt.Sprintf("retry event %d of %s%s for %s", e.Seq, e.Record, ofTenant(e.Tenant), whose), print: a.printActs,
					act: func(ctx context.Context) (any, error) {
						if consumer == "" {
							list, err := o.RetryEvent(ctx, event, f.reason)
							return acts{list}, err
						}
						return single(o.RetryConsumer(ctx, event, consumer, f.reason))
					},
				}, nil
			})
		},
	}
	f.register(cmd, commandWait)
	cmd.Flags().StringVar(&consumer, "consumer", "", "only this consumer's delivery")
	return cmd
}

func (a *app) skipCommand() *cobra.Command {
	var (
		f      actFlags
		tenant string
		seq    int64
	)
	cmd := &cobra.Command{
		Use: "skip KEY CONSUMER", Short: "Give up the event that a consumer is stuck on", Args: arguments(cobra.ExactArgs(2)),
		Long: "Gives up the event that a consumer is in backoff or parked on, on one record; it goes on with the next. --reason is\n" +
			"required. --seq says which event is meant: said again, or after somebody else, it gives up no other one. Only the\n" +
			"record's worker applies it: one has to run.",
		Example: "  keyline skip activity:42 mailer --seq 7 --reason 'the address does not exist'",
		RunE: func(cmd *cobra.Command, args []string) error {
			key, consumer := keyline.Key{Tenant: tenant, Record: args[0]}, args[1]
			if seq < 0 || seq == 0 && cmd.Flags().Changed("seq") {
				return usagef(cmd, "--seq %d: events are numbered from 1", seq)
			}
			return a.acting(cmd, &f, func(ctx context.Context, o keyline.Operator) (plan, error) {
				w, err := o.Why(ctx, key)
				if err != nil {
					return plan{}, whose(cmd, err)
				}
				for _, c := range w.Consumers {
					if c.Name != consumer {
						continue
					}
					at := seq
					if at == 0 {
						at = c.Position + 1
					}
					return plan{
						what: fmt.Sprintf("skip event %d of %s%s for %s", at, key.Record, ofTenant(tenant), consumer), print: a.printActs,
						act: func(ctx context.Context) (any, error) {
							// The one that was shown and confirmed, whatever has happened meanwhile.
							return single(o.SkipHead(ctx, key, consumer, at, f.reason))
						},
					}, nil
				}
				return plan{}, fmt.Errorf("consumer %s: %w", consumer, keyline.ErrNotFound)
			})
		},
	}
	f.register(cmd, commandWait)
	f.givesUp = true
	cmd.Flags().StringVar(&tenant, "tenant", "", "tenant that the record belongs to")
	cmd.Flags().Int64Var(&seq, "seq", 0, "the event that is meant (default: whichever the consumer is stuck on)")
	return cmd
}

// statusActs adds to the map of consumers what changes a consumer's status.
func (a *app) statusActs(consumers *cobra.Command) *cobra.Command {
	for _, act := range []struct {
		verb, becomes, short string
		givesUp              bool
		do                   func(keyline.Operator, context.Context, string, string) error
	}{
		{"pause", "paused", "Stop a consumer's deliveries; it keeps its place", false, keyline.Operator.PauseConsumer},
		{"resume", "active", "Make a paused or disabled consumer active again", false, keyline.Operator.ResumeConsumer},
		{"disable", "disabled", "Let events pass a consumer as ignored; it loses its place", true, keyline.Operator.DisableConsumer},
		{"retire", "retired", "End a consumer for ever", true, keyline.Operator.RetireConsumer},
	} {
		var f actFlags
		cmd := &cobra.Command{
			Use: act.verb + " NAME", Short: act.short, Args: arguments(cobra.ExactArgs(1)),
			RunE: func(cmd *cobra.Command, args []string) error {
				name := args[0]
				return a.acting(cmd, &f, func(ctx context.Context, o keyline.Operator) (plan, error) {
					c, err := o.InspectConsumer(ctx, name)
					if err != nil {
						return plan{}, err
					}
					return plan{
						what: fmt.Sprintf("%s consumer %s, which is %s", act.verb, name, c.Status),
						act: func(ctx context.Context) (any, error) {
							return map[string]any{"consumer": name, "status": act.becomes}, act.do(o, ctx, name, f.reason)
						},
						print: func(any) error { return a.print("consumer %s is %s", printable(name), act.becomes) },
					}, nil
				})
			},
		}
		f.register(cmd, 0)
		f.givesUp = act.givesUp
		consumers.AddCommand(cmd)
	}
	return consumers
}

func (a *app) recoverCommand() *cobra.Command {
	var f actFlags
	cmd := &cobra.Command{
		Use: "recover", Short: "Free the claims of workers that are lost", Args: arguments(cobra.NoArgs),
		Long: "Marks workers lost that stay silent for a whole lease while it watches, and frees all claims that no live worker\n" +
			"holds. Live workers do the same by themselves; this is for when none runs, or for impatience.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.acting(cmd, &f, func(_ context.Context, o keyline.Operator) (plan, error) {
				return plan{
					what: "free all claims that no live worker holds",
					act:  func(ctx context.Context) (any, error) { return o.RecoverStaleClaims(ctx, f.reason) },
					print: func(outcome any) error {
						r, _ := outcome.(keyline.Recovered)
						return a.print("%d workers marked lost, %d claims freed", len(r.Workers), r.Claims)
					},
				}, nil
			})
		},
	}
	f.register(cmd, 0)
	return cmd
}
