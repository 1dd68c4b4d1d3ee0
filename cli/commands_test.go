package cli

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/keylinehq/keyline/internal/clock"
)

// walk visits every command that somebody can run, but cobra's own.
func walk(cmd *cobra.Command, visit func(*cobra.Command)) {
	for _, c := range cmd.Commands() {
		if c.Name() == "completion" || c.Hidden {
			continue
		}
		visit(c)
		walk(c, visit)
	}
}

// Whatever changes something for an operator can be tried first, is explained in the audit, and is confirmed.
func TestEveryActHasTheFlagsOfAnAct(t *testing.T) {
	// What only looks, and what changes things without being an act of an operator on a running installation.
	others := []string{
		"keyline demo", "keyline dev", "keyline worker", "keyline append", "keyline bench", "keyline bench drain", "keyline bench append", "keyline bench latency",
		"keyline soak", "keyline bench hot", "keyline bench pinned", "keyline bench blocked", "keyline bench backlog", "keyline bench scale", "keyline bench footprint", "keyline bench trouble",
		"keyline migrate", "keyline migrate up", "keyline migrate down", "keyline migrate status", "keyline migrate sql", "keyline migrate roles", "keyline help",
		"keyline status", "keyline consumers", "keyline workers", "keyline show", "keyline why", "keyline verify", "keyline audit",
		"keyline records", "keyline records list", "keyline records show", "keyline events", "keyline events list", "keyline events show",
		"keyline dead-letters", "keyline dead-letters list", "keyline doctor", "keyline trace", "keyline health", "keyline top",
		"keyline api", "keyline api openapi", "keyline token", "keyline token list",
		"keyline outbox", "keyline outbox probe", "keyline outbox status",
	}
	var acts []string
	walk((&app{}).root(), func(c *cobra.Command) {
		has := 0
		for _, flag := range []string{"reason", "actor", "yes", "dry-run"} {
			if c.Flags().Lookup(flag) != nil {
				has++
			}
		}
		switch other := slices.Contains(others, c.CommandPath()); {
		case has == 4 && !other:
			acts = append(acts, c.CommandPath())
		case has == 4:
			t.Errorf("%s is an act, and listed as none", c.CommandPath())
		case !other:
			t.Errorf("%s has %d of the four flags of an act", c.CommandPath(), has)
		}
	})
	for _, want := range []string{
		"keyline dead-letters retry", "keyline dead-letters resolve", "keyline events retry", "keyline retry", "keyline skip", "keyline recover", "keyline drain",
		"keyline prune", "keyline consumers pause", "keyline consumers resume", "keyline consumers disable", "keyline consumers retire",
		"keyline token create", "keyline token revoke",
		"keyline outbox prepare", "keyline outbox backfill", "keyline outbox cutover", "keyline outbox back",
	} {
		if !slices.Contains(acts, want) {
			t.Errorf("%s is not among the acts %v", want, acts)
		}
	}
}

// runQuietly runs a command line and returns its exit code and what it wrote.
func runQuietly(args ...string) (int, string) {
	var out bytes.Buffer
	sig := catchSignals()
	defer sig.release()
	return (&app{clock: clock.Real(), stdin: &bytes.Buffer{}, stdout: &out, stderr: &out, signals: sig}).run(args), out.String()
}

// pathOf is what has to be typed for a command.
func pathOf(c *cobra.Command) []string { return strings.Fields(c.CommandPath())[1:] }

// Cobra answers an unknown nested command with help and success; a script must see a failure.
func TestUnknownSubcommandsOfEveryCommandFail(t *testing.T) {
	lines := [][]string{{"no-such-command"}, {"completion", "no-such-command"}}
	walk((&app{}).root(), func(c *cobra.Command) {
		if c.HasAvailableSubCommands() {
			lines = append(lines, append(pathOf(c), "no-such-command"))
		}
	})
	if len(lines) < 8 {
		t.Fatalf("only %v", lines)
	}
	for _, args := range lines {
		if code, out := runQuietly(args...); code != exitUsage {
			t.Errorf("keyline %v: exit code %d: %s", args, code, out)
		}
	}
}

// Everything explains itself without a database, and takes --json.
// Help is wrapped to the width of the terminal: a line that ends where the source's does would be broken twice.
func TestDescriptionsAreWrappedByTheTerminalAlone(t *testing.T) {
	t.Parallel()
	walk((&app{}).root(), func(c *cobra.Command) {
		for p := range strings.SplitSeq(c.Long, "\n\n") {
			if strings.Contains(p, "\n") {
				t.Errorf("%s: a paragraph has a line break of its own: %q", c.CommandPath(), p)
			}
		}
	})
}

func TestEveryCommandAnswersHelp(t *testing.T) {
	walk((&app{}).root(), func(c *cobra.Command) {
		code, out := runQuietly(append(pathOf(c), "--help")...)
		if code != exitOK || !strings.Contains(out, "USAGE") || !strings.Contains(out, "--json") {
			t.Errorf("%s --help: exit code %d: %s", c.CommandPath(), code, out)
		}
	})
}
