package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/keylinehq/keyline"
)

// statusUnregistered is how a consumer of this program stands that no worker
// has registered yet.
const statusUnregistered = "unregistered"

// mapped is a line of the map of consumers.
type mapped struct {
	Name          string   `json:"name"`
	Types         []string `json:"types"`
	Versions      []int    `json:"versions"` // null: all
	Effect        string   `json:"effect"`
	EffectNote    string   `json:"effect_note"`
	Status        string   `json:"status"`
	Revision      int      `json:"revision"`
	Transactional bool     `json:"transactional"`
	ContractOnly  bool     `json:"contract_only"`
	Internal      bool     `json:"internal"`
	PreviousNames []string `json:"previous_names"`
	HostedBy      []string `json:"hosted_by"`
	// Excluded is why this program does not run it though it has its code.
	Excluded string `json:"excluded"`
}

func (a *app) consumersCommand() *cobra.Command {
	return &cobra.Command{
		Use: "consumers", Short: "The map of consumers: what each gets, what it changes, who runs it", Args: arguments(cobra.NoArgs),
		Long: "Prints the map of consumers, from what is registered: the events that each gets, what its handler changes, why a\n" +
			"repeated delivery does no harm, and which live workers run it. Consumers of this program that are not registered yet\n" +
			"are in it too. Deliveries are at least once: only effects inside the database, in the delivery's own transaction,\n" +
			"happen exactly once.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.reading(cmd, func(ctx context.Context, o keyline.Operator) error {
				rows, err := o.Consumers(ctx)
				if err != nil {
					return err
				}
				lines := consumerMap(rows, a.consumers)
				if a.global.json {
					return a.printJSON(map[string]any{"consumers": lines})
				}
				return a.printConsumers(lines)
			})
		},
	}
}

// consumerMap joins what is registered and what this program brings.
func consumerMap(rows []keyline.ConsumerView, own []keyline.Consumer) []mapped {
	lines := []mapped{}
	for _, r := range rows {
		lines = append(lines, mapped{
			Name: r.Name, Types: r.Types, Versions: r.Versions, Effect: r.Effect, EffectNote: r.EffectNote, Status: r.Status, Revision: r.Revision,
			Transactional: r.Transactional, ContractOnly: r.ContractOnly, Internal: r.Internal, PreviousNames: r.PreviousNames, HostedBy: r.HostedBy,
		})
	}
	for _, c := range own {
		i := slices.IndexFunc(lines, func(l mapped) bool { return l.Name == c.Name })
		if i < 0 {
			i = len(lines)
			lines = append(lines, mapped{
				Name: c.Name, Types: c.Types, Versions: c.Versions, Effect: string(c.Effect.Class), EffectNote: c.Effect.Note, Status: statusUnregistered,
				Revision: max(c.Revision, 1), Transactional: c.HandleTx != nil, ContractOnly: c.ContractOnly, Internal: c.Internal,
				PreviousNames: append([]string{}, c.PreviousNames...), HostedBy: []string{},
			})
		}
		lines[i].Excluded = c.Excluded
	}
	slices.SortFunc(lines, func(x, y mapped) int { return strings.Compare(x.Name, y.Name) })
	return lines
}

func (a *app) printConsumers(lines []mapped) error {
	var rows [][]string
	for _, l := range lines {
		versions := "all"
		if l.Versions != nil {
			versions = strings.Trim(strings.ReplaceAll(fmt.Sprint(l.Versions), " ", ","), "[]")
		}
		effect := l.Effect
		switch {
		case l.EffectNote != "":
			effect += ": " + l.EffectNote
		case l.Transactional:
			effect += ": in the delivery's transaction"
		}
		status, hosts := l.Status, list(l.HostedBy)
		if l.ContractOnly {
			hosts = "contract only"
		}
		if l.Excluded != "" {
			hosts += " (excluded here: " + l.Excluded + ")"
		}
		rows = append(rows, []string{l.Name, list(l.Types), versions, effect, status, strconv.Itoa(l.Revision), hosts})
	}
	return a.section("consumers", []string{"CONSUMER", "TYPES", "VERSIONS", "EFFECT", "STATUS", "REVISION", "HOSTED BY"}, rows)
}
