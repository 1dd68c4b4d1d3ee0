package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"charm.land/fang/v2"
	"github.com/spf13/cobra"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/clock"
)

// app is one run of the command line.
type app struct {
	consumers []keyline.Consumer
	clock     clock.Clock
	stdin     io.Reader
	stdout    io.Writer
	stderr    io.Writer
	signals   *signals
	global    globalSettings
}

// Run runs the command line with args (without the program's name) and returns
// the exit code. consumers are what this program's worker delivers to; without
// any, the worker writes every event to standard output.
//
// It takes SIGINT, SIGTERM and SIGHUP (unless that is ignored) for itself while it runs; a worker and the admin API also
// ignore SIGPIPE from then on.
func Run(args []string, consumers ...keyline.Consumer) int {
	sig := catchSignals()
	defer sig.release()
	a := &app{consumers: consumers, clock: clock.Real(), stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, signals: sig}
	return a.run(args)
}

func (a *app) run(args []string) int {
	root := a.root()
	root.SetArgs(args)
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	err := fang.Execute(a.signals.stop, root, fang.WithErrorHandler(a.complain), fang.WithVersion(version()))
	if err != nil && a.signals.stop.Err() != nil && errors.Is(err, context.Canceled) {
		err = errInterrupted
	}
	return exitCode(err)
}

// complain says on standard error what went wrong.
func (a *app) complain(w io.Writer, _ fang.Styles, err error) {
	var silent *exitError
	if errors.As(err, &silent) && silent.err == nil {
		return // what the command had to say is on standard output
	}
	if a.signals.stop.Err() != nil && errors.Is(err, context.Canceled) {
		err = errInterrupted
	}
	_, _ = fmt.Fprintln(w, "keyline:", printable(plain(err.Error())))
	if lacksRights(err) {
		const roles = "This login may not do that. %[1]s_reader may look, %[1]s_operator also act, %[1]s_worker deliver, %[1]s_producer append; the schema's owner migrates.\n"
		_, _ = fmt.Fprintf(w, roles, a.global.schema)
	}
	var usage *usageError
	if errors.As(err, &usage) && usage.command != "" {
		_, _ = fmt.Fprintf(w, "Run '%s --help' for usage.\n", usage.command)
	}
}

// plain leaves out the package's name, which begins the line already, and what no line of a terminal should have.
func plain(message string) string {
	return strings.NewReplacer(": keyline: ", ": ", "\t", "  ").Replace(strings.TrimPrefix(message, "keyline: "))
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "keyline",
		Short: "Events in order per record, to every consumer, from your own Postgres",
		Long: "Keyline delivers the events that an application appends inside its own database transactions\n" +
			"to every interested consumer, strictly in order per record.",
		Example: "  keyline demo\n  keyline dev\n  keyline append activity:42 activity.completed '{\"by\":\"u1\"}'\n  keyline status",
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(cmd, args[0])
			}
			return cmd.Help()
		},
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &usageError{command: cmd.CommandPath(), err: err}
	})
	a.global.flags(root.PersistentFlags())
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		return a.layer(cmd)
	}
	root.AddCommand(
		a.demoCommand(), a.soakCommand(), a.demoWorkerCommand(), a.devCommand(), a.workerCommand(), a.migrateCommand(), a.appendCommand(),
		a.statusCommand(), a.statusActs(a.consumersCommand()), a.showCommand(), a.benchCommand(),
		a.whyCommand(), a.verifyCommand(), a.deadLettersCommand(), a.retryCommand(), a.skipCommand(), a.recoverCommand(), a.auditCommand(),
		a.workersCommand(), a.drainCommand(), a.recordsCommand(), a.eventsCommand(), a.pruneCommand(), a.doctorCommand(), a.traceCommand(), a.healthCommand(), a.topCommand(),
		a.apiCommand(), a.tokenCommand(), a.outboxCommand(),
	)
	root.SetHelpCommand(helpCommand())
	root.InitDefaultCompletionCmd()
	if completion, _, err := root.Find([]string{"completion"}); err == nil && !completion.Runnable() {
		strict(completion)
	}
	flow(root)
	return root
}

// flow joins the lines of each paragraph in the descriptions of a command and of those below it: they are wrapped to the
// width of the terminal, and lines that end where the source's do would be broken twice.
func flow(cmd *cobra.Command) {
	paragraphs := strings.Split(cmd.Long, "\n\n")
	for i, p := range paragraphs {
		paragraphs[i] = strings.ReplaceAll(p, "\n", " ")
	}
	cmd.Long = strings.Join(paragraphs, "\n\n")
	for _, below := range cmd.Commands() {
		flow(below)
	}
}

// group makes a command that only holds others.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short}
	cmd.AddCommand(commands...)
	strict(cmd)
	return cmd
}

// strict makes a group fail where it is not told which of its commands to run.
// Left alone, cobra answers an unknown one with help and success.
func strict(cmd *cobra.Command) {
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unknownCommand(cmd, args[0])
		}
		return usagef(cmd, "%s needs a subcommand", cmd.CommandPath())
	}
}

// helpCommand is cobra's, but it fails where there is nothing to explain.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use: "help [command]", Short: "Help about any command",
		// No setting is needed to read it.
		PersistentPreRunE: func(*cobra.Command, []string) error { return nil },
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return usagef(cmd, "there is no command %q", strings.Join(args, " "))
			}
			return about.Help()
		},
	}
}

func unknownCommand(cmd *cobra.Command, name string) error {
	return usagef(cmd, "unknown command %q for %q", name, cmd.CommandPath())
}

// arguments makes cobra's complaint about the number of arguments a usage error.
func arguments(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return &usageError{command: cmd.CommandPath(), err: err}
		}
		return nil
	}
}
