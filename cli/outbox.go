package cli

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/cobra"

	"github.com/keylinehq/keyline/outbox"
)

func (a *app) outboxCommand() *cobra.Command {
	cmd := group("outbox", "Take over an outbox table that a drainer of your own works on",
		a.outboxProbe(), a.outboxPrepare(), a.outboxBackfill(), a.outboxCutover(), a.outboxBack(), a.outboxStatus())
	cmd.Long = "Takes over an outbox table that a drainer of your own works on, without losing events or their order, and gives it back\n" +
		"if need be: probe, prepare, (the drainer takes the lock), prepare --guard, backfill, cutover; docs/adopting.md."
	return cmd
}

// outboxFlags say which table, and where it matters how it is to be read.
type outboxFlags struct {
	settings outbox.Settings
	file     string
	wait     time.Duration
}

// described adds a flag for each setting.
func (f *outboxFlags) described(cmd *cobra.Command) {
	f.named(cmd)
	fs, s := cmd.Flags(), &f.settings
	fs.StringVar(&s.ID, "id", "", "column that names a row: not null, with a unique index")
	fs.StringVar(&s.Created, "created", "", "column that the old drainer orders by, before the id")
	fs.StringVar(&s.Key, "key", "", "SQL expression of the record's key, such as payload->>'activity_id'")
	fs.StringVar(&s.Type, "type", "", "SQL expression of the event's type")
	fs.StringVar(&s.Payload, "payload", "", "SQL expression of the payload, json or jsonb")
	fs.StringVar(&s.Tenant, "tenant", "", "SQL expression of the tenant")
	fs.StringVar(&s.Headers, "headers", "", "SQL expression of the headers, a json object of strings")
	fs.StringVar(&s.Version, "event-version", "", "SQL expression of the version of the payload's schema")
	fs.StringVar(&s.OccurredAt, "occurred-at", "", "SQL expression of when it happened (default: the created column, where it is a timestamptz)")
	fs.StringVar(&s.Pending, "pending", "", "condition by which a row waits, such as 'processed_at is null'")
	fs.StringVar(&s.Done, "done", "", "what the old drainer sets on a row that is done, such as 'processed_at = clock_timestamp()'")
	fs.StringVar(&s.KeyColumn, "key-column", "", "column that keeps the key (default keyline_key)")
	fs.StringVar(&s.AtColumn, "at-column", "", "column that keeps when Keyline was handed the row (default keyline_at)")
}

// named adds the flags that say which table.
func (f *outboxFlags) named(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.settings.Table, "table", "", "the table, with its schema")
	cmd.Flags().StringVar(&f.file, "settings", "", "YAML file that describes the table, in words such as table, id, key, occurred_at")
}

// patient adds how long to try.
func (f *outboxFlags) patient(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&f.wait, "wait", 2*time.Minute, "how long to wait in all for those who hold what this has to lock")
}

func (f *outboxFlags) patience() outbox.Patience { return outbox.Patience{Wait: f.wait} }

// read adds what the file says to what the flags do not.
func (f *outboxFlags) read(cmd *cobra.Command) error {
	if f.file != "" {
		k := koanf.New("\x00")
		if err := k.Load(file.Provider(f.file), yaml.Parser()); err != nil {
			return usagef(cmd, "--settings %s: %w", f.file, err)
		}
		fields := map[string]reflect.Value{}
		v := reflect.ValueOf(&f.settings).Elem()
		for i := range v.NumField() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			fields[name] = v.Field(i)
		}
		for name, value := range k.Raw() {
			field, known := fields[strings.ReplaceAll(name, "-", "_")]
			text, isText := value.(string)
			switch {
			case !known:
				return usagef(cmd, "--settings %s: there is no setting %q", f.file, name)
			case !isText:
				return usagef(cmd, "--settings %s: %s is no text", f.file, name)
			case field.String() == "":
				field.SetString(text)
			}
		}
	}
	if f.settings.Table == "" {
		return usagef(cmd, "say which table: --table, or --settings")
	}
	return nil
}

// openOutbox opens the table; close ends the connection.
func (a *app) openOutbox(cmd *cobra.Command, f *outboxFlags) (o *outbox.Outbox, closeIt func(), err error) {
	if err := f.read(cmd); err != nil {
		return nil, nil, err
	}
	conn, err := a.connect(cmd)
	if err != nil {
		return nil, nil, err
	}
	if err := a.installed(cmd.Context(), conn); err != nil {
		disconnect(cmd.Context(), conn)
		return nil, nil, err
	}
	o, err = outbox.Open(conn, a.global.schema, f.settings.Table)
	if err != nil {
		disconnect(cmd.Context(), conn)
		return nil, nil, err
	}
	return o, func() { disconnect(cmd.Context(), conn) }, nil
}

// shownSQL is the output of --dry-run: what would run, in one transaction.
type shownSQL struct {
	DryRun bool     `json:"dry_run"`
	Would  string   `json:"would"`
	SQL    []string `json:"sql"`
}

// outboxLooking prints what look reads, and fails as a check does where that is not fine.
func outboxLooking[T any](a *app, cmd *cobra.Command, f *outboxFlags, look func(context.Context, *outbox.Outbox) (T, error),
	print func(T) error, fine func(T) bool,
) error {
	o, closeIt, err := a.openOutbox(cmd, f)
	if err != nil {
		return err
	}
	defer closeIt()
	v, err := look(cmd.Context(), o)
	if err != nil {
		return err
	}
	if a.global.json {
		err = a.printJSON(v)
	} else {
		err = print(v)
	}
	if err == nil && !fine(v) {
		err = found()
	}
	return err
}

// outboxActing carries out what changes an outbox. show is its SQL, for --dry-run.
func outboxActing[T any](a *app, cmd *cobra.Command, f *outboxFlags, act *actFlags, what string, show func(context.Context, *outbox.Outbox) ([]string, error),
	do func(context.Context, *outbox.Outbox, outbox.By) (T, error), print func(T) error,
) error {
	o, closeIt, err := a.openOutbox(cmd, f)
	if err != nil {
		return err
	}
	defer closeIt()
	p := plan{
		what: fmt.Sprintf(what, f.settings.Table),
		act: func(ctx context.Context) (any, error) {
			return do(ctx, o, outbox.By{Actor: act.who(), Reason: act.reason})
		},
		print: func(outcome any) error {
			v, _ := outcome.(T)
			return print(v)
		},
	}
	if act.dryRun {
		texts, err := show(cmd.Context(), o)
		if err != nil {
			return err
		}
		shown := shownSQL{true, p.what, texts}
		p.preview = shown
		p.print = func(any) error {
			if len(texts) == 0 {
				return a.print("-- nothing: all is so already")
			}
			return a.print("-- would %s, in one transaction:\n%s", printable(p.what), strings.Join(texts, "\n"))
		}
	}
	return a.carryOut(cmd, act, p)
}

func (a *app) outboxProbe() *cobra.Command {
	var f outboxFlags
	cmd := &cobra.Command{
		Use: "probe", Short: "Read the table, and what Keyline would make of its rows", Args: arguments(cobra.NoArgs),
		Long: "Reads the table from the catalog, and what the settings make of the rows that wait and of the last ones that were done:\n" +
			"keys that are missing, events that would be refused, writers who may not append. It changes nothing. The exit code is 1\n" +
			"where something has to be mended first.",
		Example: "  keyline outbox probe --settings outbox.yaml\n" +
			"  keyline outbox probe --table outbox --id id --created created_at --key \"payload->>'activity_id'\" --type event_type \\\n" +
			"    --payload payload --pending 'processed_at is null' --done 'processed_at = clock_timestamp()'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return outboxLooking(a, cmd, &f,
				func(ctx context.Context, o *outbox.Outbox) (outbox.Report, error) { return o.Probe(ctx, f.settings) },
				a.printProbe, outbox.Report.Ready)
		},
	}
	f.described(cmd)
	return cmd
}

func (a *app) printProbe(r outbox.Report) error {
	rows := "unknown"
	if r.RowsEstimate >= 0 {
		rows = "about " + count(r.RowsEstimate)
	}
	lines := []string{
		fmt.Sprintf("%s is %s: %d columns, %d indexes, %s rows, %d KiB", printable(r.Table), r.State, len(r.Columns), len(r.Indexes), rows, r.Bytes/1024),
		backlog(r.Pending),
		fmt.Sprintf("key column: %s; time column: %s", thereOrNot(r.HasKeyColumn), thereOrNot(r.HasAtColumn)),
	}
	if len(r.Triggers) > 0 {
		lines = append(lines, "triggers of its own: "+printable(strings.Join(r.Triggers, ", ")))
	}
	if u := r.UnusableKeys; u.Rows > 0 {
		lines = append(lines, fmt.Sprintf("%d rows have no usable key, such as %s: each becomes its own record", u.Rows, printable(u.Example)))
	}
	for _, b := range r.Blockers {
		lines = append(lines, "cannot be prepared: "+printable(b))
	}
	for _, p := range r.Problems {
		lines = append(lines, fmt.Sprintf("cannot be appended: %d rows, such as %s: %s", p.Rows, printable(p.Example), p.Problem))
	}
	if len(r.WritersWithoutAppend) > 0 {
		lines = append(lines, "may insert, and not append: "+printable(strings.Join(r.WritersWithoutAppend, ", "))+": grant them "+a.global.schema+"_producer before the cut-over")
	}
	if r.Ready() {
		lines = append(lines, "nothing stands in the way")
	}
	return a.print("%s", strings.Join(lines, "\n"))
}

func thereOrNot(there bool) string {
	if there {
		return "there"
	}
	return "not there yet"
}

func backlog(b outbox.Backlog) string {
	if b.Rows == 0 {
		return "no row waits"
	}
	more := ""
	if !b.Exact {
		more = "more than "
		b.Rows--
	}
	return fmt.Sprintf("%s%d rows wait, %d of them without a key, the oldest from %s", more, b.Rows, b.WithoutKey, *b.Oldest)
}

func (a *app) outboxPrepare() *cobra.Command {
	var (
		f     outboxFlags
		act   actFlags
		guard bool
	)
	cmd := &cobra.Command{
		Use: "prepare", Short: "Add the key column, the trigger that fills it, and the drainers' lock", Args: arguments(cobra.NoArgs),
		Long: "Adds to the table the column for the record's key, a trigger that fills it whoever inserts, and the functions of the later\n" +
			"steps. Nothing is rewritten, and writers wait behind it for a moment at most. With --guard, rows are ended from then on\n" +
			"by a drainer that holds the lock alone: first make every drainer take it, as the output says.",
		Example: "  keyline outbox prepare --settings outbox.yaml --dry-run\n  keyline outbox prepare --settings outbox.yaml --guard --yes --reason 'every drainer takes the lock'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			what := "prepare %s"
			if guard {
				what = "prepare %s, and let only drainers that hold the lock end rows"
			}
			return outboxActing(a, cmd, &f, &act, what,
				func(ctx context.Context, o *outbox.Outbox) ([]string, error) {
					return o.PrepareSQL(ctx, f.settings, outbox.PrepareOptions{Guard: guard})
				},
				func(ctx context.Context, o *outbox.Outbox, by outbox.By) (outbox.Prepared, error) {
					return o.Prepare(ctx, f.settings, by, outbox.PrepareOptions{Guard: guard, Patience: f.patience()})
				},
				func(p outbox.Prepared) error {
					if !p.Changed {
						return a.print("%s is %s already", printable(p.Table), p.State)
					}
					next := "each drainer has to begin its transactions with: " + p.Lock
					if guard {
						next = "rows are ended only in transactions that begin with: " + p.Lock
					}
					return a.print("%s is %s\n%s", printable(p.Table), p.State, printable(next))
				})
		},
	}
	f.described(cmd)
	f.patient(cmd)
	act.register(cmd, 0)
	cmd.Flags().BoolVar(&guard, "guard", false, "refuse that rows are ended by who does not hold the drainers' lock")
	return cmd
}

func (a *app) outboxBackfill() *cobra.Command {
	var (
		f    outboxFlags
		act  actFlags
		opts outbox.BackfillOptions
	)
	cmd := &cobra.Command{
		Use: "backfill", Short: "Give old rows the keys that new ones get", Args: arguments(cobra.NoArgs),
		Long: "Fills in the key of rows that wait and have none, in chunks, beside writers and between batches of the drainers. It can be\n" +
			"stopped and started again. The cut-over does not need it: it reads the same keys from the rows.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if opts.Chunk < 1 {
				return usagef(cmd, "--chunk %d: it has to be 1 or more", opts.Chunk)
			}
			opts.Patience = f.patience()
			return outboxActing(a, cmd, &f, &act, "fill in the keys of old rows of %s",
				func(ctx context.Context, o *outbox.Outbox) ([]string, error) { return o.BackfillSQL(ctx, opts) },
				func(ctx context.Context, o *outbox.Outbox, by outbox.By) (backfilled, error) {
					b, err := o.Backfill(ctx, by, opts)
					return backfilled{b}, err
				},
				func(b backfilled) error {
					return a.print("%d rows of %s have got their key", b.Rows, printable(b.Table))
				})
		},
	}
	f.named(cmd)
	f.patient(cmd)
	act.register(cmd, 0)
	cmd.Flags().BoolVar(&opts.AllRows, "all", false, "also rows that are done")
	cmd.Flags().IntVar(&opts.Chunk, "chunk", 1000, "rows in one transaction; drainers wait for as long as one takes")
	return cmd
}

// backfilled is the output of a backfill, also of one that was stopped on its way.
type backfilled struct{ outbox.Backfilled }

func (b backfilled) begun() bool { return b.Rows > 0 }

func (a *app) outboxCutover() *cobra.Command {
	var (
		f    outboxFlags
		act  actFlags
		opts outbox.CutoverOptions
	)
	cmd := &cobra.Command{
		Use: "cutover", Short: "Let Keyline drain: append what waits, and each insert from then on", Args: arguments(cobra.NoArgs),
		Long: "In one transaction: waits for the drainers' batches to end, holds the writers, appends what waits in order, marks it done,\n" +
			"and lets every insert append from then on, in the writer's own transaction. Where it fails or is killed, nothing has changed.\n" +
			"Writers wait while what waits is appended, so it refuses more than --limit rows.",
		Example: "  keyline outbox cutover --table outbox --dry-run\n  keyline outbox cutover --table outbox --yes --reason 'we move'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if opts.Limit < 1 {
				return usagef(cmd, "--limit %d: it has to be 1 or more", opts.Limit)
			}
			opts.Patience = f.patience()
			return outboxActing(a, cmd, &f, &act, "let Keyline drain %s instead of the old drainer",
				func(ctx context.Context, o *outbox.Outbox) ([]string, error) { return o.CutoverSQL(ctx) },
				func(ctx context.Context, o *outbox.Outbox, by outbox.By) (outbox.Moved, error) {
					return o.Cutover(ctx, by, opts)
				},
				func(m outbox.Moved) error {
					also := ""
					if m.Duplicates > 0 {
						also = fmt.Sprintf(", of which Keyline had %d", m.Duplicates)
					}
					return a.print("Keyline drains %s: %d rows waited%s; each insert appends now", printable(m.Table), m.Rows, also)
				})
		},
	}
	f.named(cmd)
	f.patient(cmd)
	act.register(cmd, 0)
	cmd.Flags().Int64Var(&opts.Limit, "limit", outbox.DefaultLimit, "refuse where more rows wait, since writers wait while they are appended")
	return cmd
}

func (a *app) outboxBack() *cobra.Command {
	var (
		f    outboxFlags
		act  actFlags
		opts outbox.BackOptions
	)
	cmd := &cobra.Command{
		Use: "back", Short: "Give the table back to its old drainer", Args: arguments(cobra.NoArgs),
		Long: "Ends the forwarding: rows that are inserted from then on wait for the old drainer. Events that Keyline has stay Keyline's, and\n" +
			"it waits until they are delivered, so that the old drainer cannot overtake them; with --force it does not.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts.Patience = f.patience()
			return outboxActing(a, cmd, &f, &act, "give %s back to its old drainer",
				func(ctx context.Context, o *outbox.Outbox) ([]string, error) { return o.BackSQL(ctx) },
				func(ctx context.Context, o *outbox.Outbox, by outbox.By) (outbox.Returned, error) {
					return o.Back(ctx, by, opts)
				},
				func(r outbox.Returned) error {
					return a.print("the old drainer has %s again; %s", printable(r.Table), undelivered(r.Undelivered))
				})
		},
	}
	f.named(cmd)
	f.patient(cmd)
	act.register(cmd, 0)
	cmd.Flags().BoolVar(&opts.Force, "force", false, "do not wait: the old drainer may overtake Keyline on records with undelivered events")
	return cmd
}

func undelivered(u outbox.Undelivered) string {
	switch {
	case u.Records == 0:
		return "Keyline has delivered all of its events"
	case !u.Exact:
		return fmt.Sprintf("more than %d records have events that Keyline has not delivered", u.Records-1)
	}
	return fmt.Sprintf("%d records have events that Keyline has not delivered", u.Records)
}

func (a *app) outboxStatus() *cobra.Command {
	var f outboxFlags
	cmd := &cobra.Command{
		Use: "status", Short: "Say who drains the table, and what waits", Args: arguments(cobra.NoArgs),
		Long: "Says who drains the table, and what waits. The exit code is 1 where a trigger of Keyline's is switched off, or rows wait that\n" +
			"nobody takes.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return outboxLooking(a, cmd, &f,
				func(ctx context.Context, o *outbox.Outbox) (outbox.Status, error) { return o.Status(ctx) },
				a.printOutboxStatus, outbox.Status.Sound)
		},
	}
	f.named(cmd)
	return cmd
}

func (a *app) printOutboxStatus(s outbox.Status) error {
	who := map[outbox.State]string{
		outbox.StateUntouched:  "nothing of Keyline is on it",
		outbox.StatePrepared:   "the old drainer drains; it may take the lock",
		outbox.StateGuarded:    "the old drainer drains, under the lock",
		outbox.StateForwarding: "Keyline drains; each insert appends",
	}[s.State]
	lines := []string{fmt.Sprintf("%s is %s: %s", printable(s.Table), s.State, who)}
	if s.Settings != nil {
		lines = append(lines, backlog(s.Pending), undelivered(s.Undelivered), fmt.Sprintf("%d sessions hold the drainers' lock", s.Drainers))
	}
	if len(s.DisabledTriggers) > 0 {
		lines = append(lines, "switched off: "+strings.Join(s.DisabledTriggers, ", "))
	}
	return a.print("%s", strings.Join(lines, "\n"))
}
