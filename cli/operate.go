package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/keylinehq/keyline"
)

// operateConnections are enough for one person's acts.
const operateConnections = 4

// openPool opens so many connections to an installed schema; close ends them.
func (a *app) openPool(cmd *cobra.Command, connections int32) (pool *pgxpool.Pool, closeIt func(), err error) {
	conn, err := a.connect(cmd)
	if err != nil {
		return nil, nil, err
	}
	err = a.installed(cmd.Context(), conn)
	disconnect(cmd.Context(), conn)
	if err != nil {
		return nil, nil, err
	}
	cfg, err := a.poolConfig(cmd)
	if err != nil {
		return nil, nil, err
	}
	cfg.MaxConns = connections
	pool, err = pgxpool.NewWithConfig(cmd.Context(), cfg)
	if err != nil {
		return nil, nil, unreachable(err)
	}
	return pool, pool.Close, nil
}

// operator opens an Operator on the database; close ends its connections.
// Who may reach the database with which rights is the database's to say: here everybody is an admin.
func (a *app) operator(cmd *cobra.Command, actor string) (o keyline.Operator, closeIt func(), err error) {
	pool, closeIt, err := a.openPool(cmd, operateConnections)
	if err != nil {
		return nil, nil, err
	}
	o, err = keyline.NewOperator(pool, keyline.OperatorConfig{Schema: a.global.schema, Actor: actor, Role: keyline.RoleAdmin})
	if err != nil {
		closeIt()
		return nil, nil, err
	}
	return o, closeIt, nil
}

// reading runs f with an Operator that only reads, but all there is: whoever can
// read the database can.
func (a *app) reading(cmd *cobra.Command, f func(context.Context, keyline.Operator) error) error {
	o, closeIt, err := a.operator(cmd, "")
	if err != nil {
		return err
	}
	defer closeIt()
	return f(cmd.Context(), o)
}

// actFlags are those of every command that changes something.
type actFlags struct {
	reason, actor string
	yes, dryRun   bool
	wait          time.Duration
	// givesUp is true of an act that gives something up, and so needs a reason.
	givesUp bool
}

// commandWait is how long an act waits for a worker where nobody says.
const commandWait = 30 * time.Second

// register adds the flags. wait is how long it waits for a worker where nobody says; 0: it needs none.
func (f *actFlags) register(cmd *cobra.Command, wait time.Duration) {
	fs := cmd.Flags()
	fs.StringVar(&f.reason, "reason", "", "why, for the audit; required where something is given up")
	fs.StringVar(&f.actor, "actor", "", "who acts, for the audit (default: the user of this session)")
	fs.BoolVar(&f.yes, "yes", false, "do not ask")
	fs.BoolVar(&f.dryRun, "dry-run", false, "say what would be done, and do nothing")
	if wait > 0 {
		fs.DurationVar(&f.wait, "wait", wait, "how long to wait until a worker has applied it; it stays asked for after that")
	}
}

func (f *actFlags) who() string {
	if f.actor != "" {
		return f.actor
	}
	if u, err := user.Current(); err == nil && u.Username != "" {
		return u.Username
	}
	return os.Getenv("USER")
}

// plan is an act before it is done.
type plan struct {
	// what says what would be done, after "would ".
	what string
	// confirm is what has to be typed where nobody said --yes; "" means "yes".
	confirm string
	// matched is how many dead letters a bulk act is about.
	matched *int64
	// preview is what --dry-run shows, where the words and the number are not all.
	preview any
	act     func(context.Context) (any, error)
	// print shows the outcome to people.
	print func(outcome any) error
}

// dryRun is the output of --dry-run.
type dryRun struct {
	DryRun  bool   `json:"dry_run"`
	Would   string `json:"would"`
	Matched *int64 `json:"matched,omitempty"`
}

// acting makes a plan with an Operator, and carries it out once it is confirmed.
func (a *app) acting(cmd *cobra.Command, f *actFlags, prepare func(context.Context, keyline.Operator) (plan, error)) error {
	if f.givesUp && !f.dryRun && strings.TrimSpace(f.reason) == "" {
		// Before anybody has typed a confirmation for nothing.
		return usagef(cmd, "--reason is required: what is given up is not delivered any more, and the audit says why")
	}
	o, closeIt, err := a.operator(cmd, f.who())
	if err != nil {
		return err
	}
	defer closeIt()
	p, err := prepare(cmd.Context(), o)
	if err != nil {
		return err
	}
	return a.carryOut(cmd, f, p)
}

// carryOut does what a plan says once it is confirmed, or says what it would do.
func (a *app) carryOut(cmd *cobra.Command, f *actFlags, p plan) error {
	if f.dryRun && p.preview != nil {
		if a.global.json {
			return a.printJSON(p.preview)
		}
		return p.print(p.preview)
	}
	if f.dryRun {
		if a.global.json {
			return a.printJSON(dryRun{true, p.what, p.matched})
		}
		return a.print("would %s", line(p.what))
	}
	if err := a.confirm(cmd, f, p); err != nil {
		return err
	}
	ctx := cmd.Context()
	if f.wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, f.wait)
		defer cancel()
	}
	outcome, err := p.act(ctx)
	if several, ok := outcome.(partial); err != nil && (!ok || !several.begun()) {
		return err
	}
	// Where some of several were done before one failed, they are told of all the same.
	if a.global.json {
		return errors.Join(err, a.printJSON(outcome))
	}
	return errors.Join(err, p.print(outcome))
}

// partial is the outcome of an act of several parts.
type partial interface{ begun() bool }

var errNotConfirmed = errors.New("not confirmed: nothing was done")

// confirm asks whoever sits at the terminal; where nobody does, --yes must have been given.
func (a *app) confirm(cmd *cobra.Command, f *actFlags, p plan) error {
	if f.yes {
		return nil
	}
	in, ok := a.stdin.(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) {
		return usagef(cmd, "this would %s: confirm it with --yes, or look first with --dry-run", p.what)
	}
	word := p.confirm
	if word == "" {
		word = "yes"
	}
	_, _ = fmt.Fprintf(a.stderr, "This will %s.\nType %s to go on: ", line(p.what), word)
	line, err := bufio.NewReader(in).ReadString('\n')
	if err != nil || strings.TrimSpace(line) != word {
		return errNotConfirmed
	}
	return nil
}

// acts is the output of acts on deliveries.
type acts struct {
	Acts []keyline.Act `json:"acts"`
}

func (l acts) begun() bool { return len(l.Acts) > 0 }

// single is the output of one act.
func single(act keyline.Act, err error) (any, error) {
	if err != nil {
		return acts{}, err
	}
	return acts{[]keyline.Act{act}}, nil
}

func (a *app) printActs(outcome any) error {
	list, _ := outcome.(acts)
	for _, act := range list.Acts {
		err := a.print("%s%s #%d for %s: %s", line(act.Record), ofTenant(act.Tenant), act.Seq, act.Consumer, act.Outcome)
		if err != nil {
			return err
		}
	}
	return nil
}

// given is a flag's value, "" included, or nil where it was not given.
func given(cmd *cobra.Command, flag, value string) *string {
	if !cmd.Flags().Changed(flag) {
		return nil
	}
	return &value
}
