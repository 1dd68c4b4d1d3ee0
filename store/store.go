package store

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/dsn"
	"github.com/keylinehq/keyline/migrations"
)

//go:embed sql/*.sql
var sqlFiles embed.FS

// Config is what a Store needs.
type Config struct {
	// Pool is how to connect; it is copied. MaxConns is the size of the HandleTx pool, which is at least 4.
	Pool *pgxpool.Config
	// Schema is Keyline's schema; "" means migrations.DefaultSchema.
	Schema string
	// ListenURL is a direct connection for session locks; "" means Pool's.
	ListenURL string
	// Clock is what carries the database's time on between readings, and what pauses are
	// measured by. Default: the system's.
	Clock clock.Clock
	// Logger defaults to slog.Default().
	Logger *slog.Logger
	// Local is what this process knows of its consumers, by name. One that is not in it is not
	// hosted here.
	Local map[string]Local
}

// Local is what only this process decides about a consumer.
type Local struct {
	// Revision is the revision that the code carries; where the registry has a
	// newer one, the consumer counts as unhosted here.
	Revision int
	// Window and BatchSize are as in core.Consumer.
	Window, BatchSize int
}

// Store is the Postgres store of one process.
type Store struct {
	schema   string
	instance uuid.UUID
	clock    *databaseClock
	rand     *clock.Rand
	log      *slog.Logger
	local    map[string]Local
	sql      map[string]string

	// Claims, loads and flushes, each of which is one at a time, have a session each, which is warm once the worker has joined. Out of
	// one pool any of them now and then got a session that had done something else so far: to compile and plan it anew
	// takes it tens of milliseconds, and where many wait for the CPU ten times that, in which nothing is delivered. The
	// pools have room for a second: one that nobody answers any more takes seconds to close.
	claims, loads, flushes *pgxpool.Pool

	hot   *pgxpool.Pool // sweeps, and what operators ask
	tx    *pgxpool.Pool // HandleTx
	lease *pgxpool.Pool // heartbeat and recovery, registry changes, what metrics ask
	arm   *pgx.ConnConfig
	// armBefore changes a copy of arm before each connection, as the pool's BeforeConnect does; nil: none.
	armBefore func(context.Context, *pgx.ConnConfig) error

	// hasty are the consumers, by id, whose outcome once was not booked in time: perhaps for a limit that their handler sets
	// for its own statements. Theirs are booked under the session's limits, by two statements more.
	hasty sync.Map

	sockets     sockets
	endSessions atomic.Bool  // at the next Join
	fenced      atomic.Int64 // the worker that was given up last

	level    int32      // of this binary, as a schema's version
	unserved chan error // one, once it is known

	sweepAsked chan struct{}
	unlooked   atomic.Bool  // nobody has looked yet whether the clock was set back before this store was opened
	epoch      atomic.Int64 // of the registry that was last read
	hosts      atomic.Pointer[hosts]
	defined    atomic.Pointer[[]Definition] // what was registered last
	joined     atomic.Bool

	commit *committer
	bound  lowerBound
	ahead  readAhead
	calls  callCounters

	workerMu sync.Mutex
	worker   int64 // the incarnation that flushes are made for
}

// Open connects a Store. It checks that the schema serves this binary.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	s := &Store{schema: cfg.Schema, sweepAsked: make(chan struct{}, 1), unserved: make(chan error, 1), instance: uuid.New(), rand: clock.NewRand(clock.RandomSeed()), log: cfg.Logger, local: cfg.Local}
	s.unlooked.Store(true)
	if s.schema == "" {
		s.schema = migrations.DefaultSchema
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.Real()
	}
	s.clock = &databaseClock{Clock: cfg.Clock}
	if s.log == nil {
		s.log = slog.Default()
	}
	if err := migrations.CheckSchemaName(s.schema); err != nil {
		return nil, err
	}
	var err error
	if s.sql, err = statements(s.schema); err != nil {
		return nil, err
	}
	if s.arm, err = s.armConfig(cfg); err != nil {
		return nil, err
	}
	if err := s.openPools(ctx, cfg.Pool); err != nil {
		s.Close()
		return nil, err
	}
	if err := s.check(ctx); err != nil {
		s.Close()
		return nil, err
	}
	s.bound.clock = s.clock
	s.commit = startCommitter(ctx, s)
	return s, nil
}

// leaseConns: the looks for lost workers and for orphans wait, each on a connection, where somebody has locked the mailboxes.
// Renewals need one that is left.
const leaseConns = 3

func (s *Store) openPools(ctx context.Context, base *pgxpool.Config) error {
	s.sockets.clock = s.clock
	for _, p := range []struct {
		pool **pgxpool.Pool
		max  int32
	}{{&s.claims, 2}, {&s.loads, 2}, {&s.flushes, 2}, {&s.hot, 4}, {&s.tx, max(base.MaxConns, 4)}, {&s.lease, leaseConns}} {
		cfg := base.Copy()
		cfg.MaxConns, cfg.MinConns, cfg.MinIdleConns = p.max, 0, 0
		s.ours(cfg.ConnConfig)
		cfg.ConnConfig.DialFunc = s.sockets.dial(cfg.ConnConfig.DialFunc)
		cfg.ConnConfig.OnPgError = notReadOnly(cfg.ConnConfig.OnPgError)
		if p.pool == &s.tx {
			cfg.ConnConfig.OnNotice = noteXact(cfg.ConnConfig.OnNotice)
		}
		pool, err := pgxpool.NewWithConfig(ctx, cfg)
		if err != nil {
			return fmt.Errorf("open pool: %w", err)
		}
		*p.pool = pool
	}
	return nil
}

// TxConns is how many HandleTx transactions can be open at once: no more than that have a connection.
func (s *Store) TxConns() int { return int(s.tx.Config().MaxConns) }

func (s *Store) check(ctx context.Context) error {
	conn, err := s.lease.Acquire(ctx)
	if err != nil {
		return translate("connect", err)
	}
	defer conn.Release()
	status, err := migrations.Read(ctx, conn.Conn(), s.schema)
	if err == nil {
		err = status.Fit()
	}
	if err != nil {
		return err
	}
	s.level = status.Latest
	if status.Ahead() {
		s.log.Info("the schema is newer than this binary, which it still serves", "schema", s.schema, "version", status.Current, "known", status.Latest)
	}
	return s.readClock(ctx, conn)
}

func (s *Store) readClock(ctx context.Context, on rower) error {
	var now time.Time
	before := s.clock.Mono()
	if err := on.QueryRow(ctx, "select clock_timestamp()").Scan(&now); err != nil {
		return translate("read clock", err)
	}
	s.clock.read(now, before, s.clock.Mono())
	return nil
}

// ours says what the sessions of this process begin with.
func (s *Store) ours(cfg *pgx.ConnConfig) {
	cfg.RuntimeParams["application_name"] = s.applicationName()
	dsn.UTF8(cfg)
}

// notReadOnly closes a connection that has met a server, or a default of its session, which lets it write nothing: such as a
// standby, to which a name or a proxy led for a moment during a failover. The others are no better, and give way one by one.
func notReadOnly(next pgconn.PgErrorHandler) pgconn.PgErrorHandler {
	return func(conn *pgconn.PgConn, err *pgconn.PgError) bool {
		return err.Code != stateReadOnly && (next == nil || next(conn, err))
	}
}

// applicationName marks this process's sessions; mark_lost looks for it.
func (s *Store) applicationName() string { return "keyline " + s.instance.String() }

// Schema returns the schema's name.
func (s *Store) Schema() string { return s.schema }

// Close writes what has been handed to the committer, and disconnects. It may
// be called twice. Flushes handed over later are answered as fenced.
//
// A handler that does not come back holds a connection for as long as it likes, and with it its record. It is waited for a moment; then
// all connections are cut, so that the server rolls its transaction back, and its place in the pool goes when it returns.
func (s *Store) Close() {
	if s.commit != nil {
		s.commit.stop()
	}
	var closing sync.WaitGroup
	for _, p := range []*pgxpool.Pool{s.claims, s.loads, s.flushes, s.hot, s.tx, s.lease} {
		if p != nil {
			closing.Go(p.Close)
		}
	}
	closed, late := make(chan struct{}), make(chan struct{})
	go func() {
		closing.Wait()
		close(closed)
	}()
	timer := s.clock.AfterFunc(closeGrace, func() { close(late) })
	defer timer.Stop()
	select {
	case <-closed:
	case <-late:
		s.sockets.cut()
	}
}

// statements loads the SQL files with the schema's name filled in.
func statements(schema string) (map[string]string, error) {
	entries, err := fs.ReadDir(sqlFiles, "sql")
	if err != nil {
		return nil, fmt.Errorf("read sql: %w", err)
	}
	out := make(map[string]string, len(entries))
	for _, e := range entries {
		body, err := fs.ReadFile(sqlFiles, path.Join("sql", e.Name()))
		if err != nil {
			return nil, fmt.Errorf("read sql: %w", err)
		}
		out[strings.TrimSuffix(e.Name(), ".sql")] = strings.ReplaceAll(string(body), "{{.schema}}", schema)
	}
	return out, nil
}

// q returns a statement by its file's name.
func (s *Store) q(name string) string {
	sql, ok := s.sql[name]
	if !ok {
		panic("store: no statement " + name)
	}
	return sql
}

// planAnew has a statement planned for each call. A session that keeps the plan which it made while a table was empty, as
// mailboxes is whenever there is nothing to do, reads all of it once there is much. It is for what runs seldom; what looks
// things up by key all the time is pinned instead.
const planAnew = pgx.QueryExecModeExec

// read runs statements that look things up, in one round trip, with plans that do not depend on statistics.
func (s *Store) read(ctx context.Context, pool *pgxpool.Pool, queue func(*pgx.Batch)) error {
	return s.pinned(ctx, pool, "begin isolation level read committed read only", queue)
}

// lookUp reads one row; pgx.ErrNoRows where there is none.
func (s *Store) lookUp(ctx context.Context, pool *pgxpool.Pool, statement string, args []any, dst ...any) error {
	return s.read(ctx, pool, func(b *pgx.Batch) {
		b.Queue(s.q(statement), args...).QueryRow(func(row pgx.Row) error { return row.Scan(dst...) })
	})
}

// pinned runs statements in a transaction, in one round trip, with plans that do not depend on statistics. Settings are
// not all that this takes: where to a planner all indexes of a table that it takes for empty are one, a statement leaves it one that will do.
func (s *Store) pinned(ctx context.Context, pool *pgxpool.Pool, begin string, queue func(*pgx.Batch)) error {
	var b pgx.Batch
	b.Queue(begin)
	b.Queue(s.q("pin"))
	queue(&b)
	b.Queue("commit")
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if err := conn.SendBatch(ctx, &b).Close(); err != nil {
		return errors.Join(err, rollback(ctx, conn))
	}
	return nil
}

// queryer is what a read-only statement runs on.
type queryer interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// rower is what one with one row runs on.
type rower interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// autocommit runs one statement as a transaction of its own at READ COMMITTED,
// whatever the role's default is: a snapshot per statement is what the claim and
// flush functions and the registry barrier are built on. One round trip.
func autocommit(ctx context.Context, pool *pgxpool.Pool, sql string, args []any, scan func(pgx.Rows) error) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	var b pgx.Batch
	b.Queue("begin isolation level read committed")
	b.Queue(sql, args...)
	b.Queue("commit")
	if err := runBatch(ctx, conn, &b, scan); err != nil {
		return errors.Join(err, rollback(ctx, conn))
	}
	return nil
}

// rollback ends a failed transaction: otherwise the pool would throw its connection away.
func rollback(ctx context.Context, conn *pgxpool.Conn) error {
	if conn.Conn().IsClosed() || conn.Conn().PgConn().TxStatus() == 'I' {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeGrace)
	defer cancel()
	_, err := conn.Exec(ctx, "rollback")
	return err
}

func runBatch(ctx context.Context, conn *pgxpool.Conn, b *pgx.Batch, scan func(pgx.Rows) error) (err error) {
	results := conn.SendBatch(ctx, b)
	defer func() { err = errors.Join(err, results.Close()) }()
	if _, err := results.Exec(); err != nil {
		return err
	}
	rows, err := results.Query()
	if err != nil {
		return err
	}
	for rows.Next() {
		if err := scan(rows); err != nil {
			rows.Close()
			return err
		}
	}
	rows.Close()
	if err := rows.Err(); err != nil {
		return err
	}
	_, err = results.Exec()
	return err
}

// one scans the one row of a statement, column by column.
func one(dst ...any) func(pgx.Rows) error {
	return func(rows pgx.Rows) error { return rows.Scan(dst...) }
}

// none is for statements that return no rows.
func none(pgx.Rows) error { return nil }

// optional returns nil for the zero time, which is null in the database.
func optional(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func value(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}
