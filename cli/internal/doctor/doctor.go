package doctor

import (
	"context"
	"embed"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keylinehq/keyline/internal/clock"
)

//go:embed sql/*.sql
var files embed.FS

// Status is what a check came to.
type Status string

// The statuses.
const (
	OK   Status = "ok"
	Warn Status = "warn" // it works, and will not always
	Fail Status = "fail" // something does not work
)

// Check is what one look has found.
type Check struct {
	ID     string `json:"id"`
	Status Status `json:"status"`
	Detail string `json:"detail"`
	// Fix says what to do; "" where nothing is to be done.
	Fix string `json:"fix"`
}

// Report is what all looks have found; it is OK without a Fail.
type Report struct {
	OK     bool    `json:"ok"`
	Checks []Check `json:"checks"`
}

// Limits are where a figure becomes a warning; the zero value of each is its default.
type Limits struct {
	// IdleInTransaction is how long a session may sit in an open transaction; 1 minute.
	IdleInTransaction time.Duration
	// Pinned is how long a transaction may keep vacuum from its work; 5 minutes.
	Pinned time.Duration
	// PinnedXIDs is how many transactions old the horizon may be that anything pins; 1,000,000.
	PinnedXIDs int64
	// DeadRows is how many dead rows a hot table may have, where they are more than the live ones; 100,000.
	DeadRows int64
	// ClockOffset is how far this machine's clock may be from the database's; 1 second.
	ClockOffset time.Duration
	// QueueUsage is how full the queue of notifications may be; 0.1.
	QueueUsage float64
}

// Options are what the doctor looks at.
type Options struct {
	// Pool is how workers connect, Schema where Keyline is.
	Pool   *pgxpool.Config
	Schema string
	// ListenURL is the workers' direct connection; "" where they have none.
	ListenURL string
	// OTLP are the endpoints that traces and metrics go to, by signal; none: they go nowhere.
	OTLP   map[string]string
	Clock  clock.Clock
	Limits Limits
}

// visit is one run of all checks, on one connection.
type visit struct {
	opts Options
	conn *pgx.Conn
	// installed is true where the schema is, at this binary's version.
	installed bool
}

// finding is a Check without its id.
type finding struct {
	status      Status
	detail, fix string
}

func fine(format string, args ...any) finding { return finding{OK, fmt.Sprintf(format, args...), ""} }

// checks are all, in the order in which they are told.
var checks = []struct {
	id   string
	look func(*visit, context.Context) (finding, error)
}{
	{"server_version", (*visit).serverVersion},
	{"primary", (*visit).primary},
	{"schema", (*visit).schema},
	{"privileges", (*visit).privileges},
	{"idle_in_transaction", (*visit).idleInTransaction},
	{"xmin_pins", (*visit).xminPins},
	{"autovacuum", (*visit).autovacuum},
	{"bloat", (*visit).bloat},
	{"notify_queue", (*visit).notifyQueue},
	{"pooler", (*visit).pooler},
	{"clock", (*visit).clock},
	{"connections", (*visit).connections},
	{"workers", (*visit).workers},
	{"unhosted", (*visit).unhosted},
	{"otlp", (*visit).otlp},
}

// needsSchema are the checks that ask Keyline's own tables.
var needsSchema = map[string]bool{"privileges": true, "bloat": true, "workers": true, "unhosted": true}

// Run makes all checks. An error is one of the context: whatever else goes
// wrong is what the report is about.
func Run(ctx context.Context, opts Options) (Report, error) {
	opts.Limits = opts.Limits.orDefaults()
	r := Report{OK: true, Checks: []Check{}}
	v := visit{opts: opts}
	conn, err := v.connect(ctx, opts.Pool.ConnConfig)
	if err != nil {
		r.add("connection", finding{Fail, err.Error(), "check --database-url, and that the server runs and lets this role in"})
		return r, ctx.Err()
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	v.conn = conn
	r.add("connection", fine("connected to %s as %s", opts.Pool.ConnConfig.Database, opts.Pool.ConnConfig.User))
	for _, c := range checks {
		if needsSchema[c.id] && !v.installed {
			continue // the missing schema is said once
		}
		f, err := c.look(&v, ctx)
		if ctx.Err() != nil {
			return r, ctx.Err()
		}
		if err != nil {
			f = finding{Warn, "could not be looked at: " + err.Error(), "run the doctor as a role that may (pg_monitor)"}
		}
		r.add(c.id, f)
		v.installed = v.installed || c.id == "schema" && f.status == OK
	}
	return r, nil
}

func (r *Report) add(id string, f finding) {
	r.Checks = append(r.Checks, Check{id, f.status, f.detail, f.fix})
	r.OK = r.OK && f.status != Fail
}

// connectTimeout is how long a connection may take to come.
const connectTimeout = 10 * time.Second

// connect opens a connection that also passes a transaction pooler.
func (v *visit) connect(ctx context.Context, cfg *pgx.ConnConfig) (*pgx.Conn, error) {
	cfg = cfg.Copy()
	cfg.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	cfg.RuntimeParams["application_name"] = "keyline doctor"
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	return pgx.ConnectConfig(ctx, cfg)
}

// q is a statement by its file's name.
func (v *visit) q(name string) string {
	body, err := files.ReadFile(path.Join("sql", name+".sql"))
	if err != nil {
		panic("doctor: no statement " + name)
	}
	return strings.ReplaceAll(string(body), "{{.schema}}", v.opts.Schema)
}

// row reads the one row of a statement.
func (v *visit) row(ctx context.Context, name string, args []any, dst ...any) error {
	return v.conn.QueryRow(ctx, v.q(name), args...).Scan(dst...)
}

// list reads the rows of a statement.
func list[T any](ctx context.Context, v *visit, name string, args ...any) ([]T, error) {
	rows, err := v.conn.Query(ctx, v.q(name), args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[T])
}

func (l Limits) orDefaults() Limits {
	or(&l.IdleInTransaction, time.Minute)
	or(&l.Pinned, 5*time.Minute)
	or(&l.PinnedXIDs, 1_000_000)
	or(&l.DeadRows, 100_000)
	or(&l.ClockOffset, time.Second)
	or(&l.QueueUsage, 0.1)
	return l
}

func or[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// rounded is a time in seconds for people.
func rounded(seconds float64) time.Duration {
	return time.Duration(seconds * float64(time.Second)).Round(100 * time.Millisecond)
}
