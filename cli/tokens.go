package cli

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/keylinehq/keyline"
)

func (a *app) tokenCommand() *cobra.Command {
	return group("token", "Tokens of the admin API: create, list, revoke", a.tokenCreateCommand(), a.tokenListCommand(), a.tokenRevokeCommand())
}

// tokenLasts is how long a token lasts where nobody says.
const tokenLasts = 90 * 24 * time.Hour

func (a *app) tokenCreateCommand() *cobra.Command {
	var (
		f       actFlags
		role    string
		tenant  string
		lasts   = days(tokenLasts)
		forever bool
	)
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Make a token, and print its secret once", Args: arguments(cobra.ExactArgs(1)),
		Long: "Makes a token of the admin API. NAME is who acts, as the audit names them; a name is given once. The secret is\n" +
			"printed this once and kept nowhere: the database has a hash of it.",
		Example: "  keyline token create olga --role operator --tenant acme --expires-in 30d",
		RunE: func(cmd *cobra.Command, args []string) error {
			n := keyline.NewToken{Name: args[0], Role: keyline.Role(role), Tenant: given(cmd, "tenant", tenant), ExpiresIn: time.Duration(lasts)}
			switch {
			case role == "":
				return usagef(cmd, "--role is required: viewer, operator or admin")
			case forever && cmd.Flags().Changed("expires-in"):
				return usagef(cmd, "--expires-in or --no-expiry, not both")
			case forever:
				n.ExpiresIn = 0
			case lasts == 0:
				return usagef(cmd, "--expires-in must be more than nothing")
			}
			return a.acting(cmd, &f, func(_ context.Context, o keyline.Operator) (plan, error) {
				return plan{
					what: fmt.Sprintf("create a token %s of the role %s", args[0], role),
					act:  func(ctx context.Context) (any, error) { return o.CreateToken(ctx, n, f.reason) },
					print: func(outcome any) error {
						t, _ := outcome.(keyline.IssuedToken)
						a.talk("token %d of %s, %s, expires %s. This is shown once:", t.ID, printable(t.Name), t.Role, expiry(t.ExpiresAt))
						return a.print("%s", t.Secret)
					},
				}, nil
			})
		},
	}
	f.register(cmd, 0)
	fs := cmd.Flags()
	fs.StringVar(&role, "role", "", "viewer, operator or admin")
	fs.StringVar(&tenant, "tenant", "", "only for this tenant's records (default: all tenants)")
	fs.Var(&lasts, "expires-in", "how long it lasts, such as 90d or 36h")
	fs.BoolVar(&forever, "no-expiry", false, "it lasts until it is revoked")
	return cmd
}

func expiry(t *time.Time) string {
	if t == nil {
		return "never"
	}
	return when(t)
}

func (a *app) tokenListCommand() *cobra.Command {
	var f keyline.TokenFilter
	cmd := &cobra.Command{
		Use: "list", Short: "List tokens, the newest first", Args: arguments(cobra.NoArgs),
		Long: "Lists tokens, also those that have ended, without their secrets. --below goes on with the next page.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.Limit < 1 || f.Limit > mostRows {
				return usagef(cmd, "--limit %d: must be 1 to %d", f.Limit, mostRows)
			}
			return a.reading(cmd, func(ctx context.Context, o keyline.Operator) error {
				list, err := o.Tokens(ctx, f)
				if err != nil {
					return err
				}
				if a.global.json {
					return a.printJSON(map[string]any{"tokens": notNil(list)})
				}
				var rows [][]string
				for _, t := range list {
					state, tenant := "live", "all"
					switch {
					case t.RevokedAt != nil:
						state = "revoked"
					case !t.Live:
						state = "expired"
					}
					if t.Tenant != nil {
						tenant = strconv.Quote(*t.Tenant)
					}
					rows = append(rows, []string{count(t.ID), t.Name, t.Role, tenant, state, expiry(t.ExpiresAt), when(t.LastUsedAt), t.CreatedBy})
				}
				return a.section("tokens", []string{"ID", "NAME", "ROLE", "TENANT", "STATE", "EXPIRES", "LAST USED", "CREATED BY"}, rows)
			})
		},
	}
	cmd.Flags().Int64Var(&f.Below, "below", 0, "only ids below this one")
	cmd.Flags().IntVar(&f.Limit, "limit", 100, "the most rows")
	return cmd
}

func (a *app) tokenRevokeCommand() *cobra.Command {
	var f actFlags
	cmd := &cobra.Command{
		Use: "revoke ID", Short: "End a token: from then on nobody comes in with it", Args: arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := strconv.ParseInt(args[0], 10, 64)
			if err != nil || id < 1 {
				return usagef(cmd, "%q is no id of a token", args[0])
			}
			return a.acting(cmd, &f, func(_ context.Context, o keyline.Operator) (plan, error) {
				return plan{
					what: fmt.Sprintf("revoke token %d", id),
					act:  func(ctx context.Context) (any, error) { return o.RevokeToken(ctx, id, f.reason) },
					print: func(outcome any) error {
						t, _ := outcome.(keyline.Token)
						return a.print("token %d of %s is revoked", t.ID, printable(t.Name))
					},
				}, nil
			})
		},
	}
	f.register(cmd, 0)
	return cmd
}
