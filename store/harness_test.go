package store

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/internal/testdb"
	"github.com/keylinehq/keyline/keylinetype"
)

// rig is a database with a store on it.
type rig struct {
	*testing.T
	*Store
	db   *testdb.DB
	pool *pgxpool.Pool // the application's
	me   int64         // the store's worker
	// session is where transactions begin. nil: each in one of its own.
	session *pgx.Conn
}

// newRig opens a store that has joined as a worker. change may alter its configuration.
func newRig(t *testing.T, change ...func(*Config)) *rig {
	t.Helper()
	t.Parallel()
	return on(t, testdb.New(t), change...)
}

// on opens another store, of another process, on a database.
func on(t *testing.T, db *testdb.DB, change ...func(*Config)) *rig {
	t.Helper()
	r := &rig{T: t, Store: openStore(t, db, change...), db: db, pool: db.Pool()}
	r.me = r.join("w")
	r.SetWorker(r.me)
	return r
}

// openStore opens a store that has not joined.
func openStore(t *testing.T, db *testdb.DB, change ...func(*Config)) *Store {
	t.Helper()
	pool, err := pgxpool.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	pool.MaxConns = 8
	cfg := Config{Pool: pool, Schema: db.Schema, Logger: logger(t)}
	for _, f := range change {
		f(&cfg)
	}
	s, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// logger writes to the test's log, unless the test has ended.
func logger(t *testing.T) *slog.Logger {
	w := &testLog{t: t}
	t.Cleanup(w.end)
	return slog.New(slog.NewTextHandler(w, nil))
}

type testLog struct {
	mu    sync.Mutex
	t     *testing.T
	ended bool
}

func (w *testLog) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
}

func (w *testLog) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.ended {
		w.t.Logf("%s", bytes.TrimSpace(b))
	}
	return len(b), nil
}

func (r *rig) join(name string) int64 {
	r.Helper()
	id, err := r.Join(r.Context(), core.Worker{Name: name, Host: "here", PID: 1, Lease: 15 * time.Second})
	if err != nil {
		r.Fatal(err)
	}
	return id
}

type execer interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// append appends events of type t to a record of its own name and returns the record's id.
func (r *rig) append(key string, types ...string) int64 {
	r.Helper()
	if len(types) == 0 {
		types = []string{"t"}
	}
	for _, kind := range types {
		r.appendOn(r.pool, key, kind)
	}
	return r.record(key)
}

func (r *rig) appendOn(on execer, key, kind string) {
	r.Helper()
	var seq int64
	if err := on.QueryRow(r.Context(), r.named("select seq from keyline.append($1, $2, '{}')"), key, kind).Scan(&seq); err != nil {
		r.Fatal(err)
	}
}

// named puts the schema's name into a statement.
func (r *rig) named(sql string) string { return strings.ReplaceAll(sql, "keyline.", r.Schema()+".") }

// operate is what operators have of the same installation.
func (r *rig) operate() *Operate {
	r.Helper()
	o, err := NewOperate(r.pool, r.Schema())
	if err != nil {
		r.Fatal(err)
	}
	return o
}

// Command gives a command without a look at what others wait; 0 stands for no consumer and no dead letter.
func (r *rig) Command(ctx context.Context, c core.Command, target string) (id int64, err error) {
	err = r.pool.QueryRow(ctx, r.named("select keyline.command($1, $2, nullif($3::integer, 0), $4, nullif($5::bigint, 0), $6, $7, $8)"),
		c.Record, c.Kind, c.Consumer, c.Seq, c.DeadLetter, c.Actor, c.Reason, target).Scan(&id)
	return id, translate("command", err)
}

func (r *rig) record(key string) int64 {
	r.Helper()
	id, err := r.FindRecord(r.Context(), keylinetype.Key{Record: key})
	if err != nil {
		r.Fatal(err)
	}
	return id
}

func (r *rig) exec(sql string, args ...any) {
	r.Helper()
	if _, err := r.pool.Exec(r.Context(), r.named(sql), args...); err != nil {
		r.Fatalf("%s: %v", sql, err)
	}
}

// get reads one value; its zero where there is no row.
func get[T any](r *rig, sql string, args ...any) T {
	r.Helper()
	rows, err := r.pool.Query(r.Context(), r.named(sql), args...)
	if err != nil {
		r.Fatalf("%s: %v", sql, err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[T])
	if err != nil {
		r.Fatalf("%s: %v", sql, err)
	}
	if len(list) == 0 {
		var zero T
		return zero
	}
	return list[0]
}

// mailbox is a mailbox as a word: "" none, "claimed", "due", "later", "held".
func (r *rig) mailbox(record int64) string {
	r.Helper()
	return get[string](r, `select case when claimed_by is not null then 'claimed' when due_at = 'infinity' then 'held'
		when due_at <= clock_timestamp() then 'due' else 'later' end from keyline.mailboxes where record_id = $1`, record)
}

func (r *rig) claimOne(record int64) core.Claim {
	r.Helper()
	claims, err := r.Claim(r.Context(), core.ClaimRequest{Worker: r.me, Limit: 1, Record: record})
	if err != nil || len(claims) != 1 {
		r.Fatalf("claim %d: %v, %v", record, claims, err)
	}
	return claims[0]
}

func (r *rig) claims(worker int64, limit int, hosted ...int32) []core.Claim {
	r.Helper()
	claims, err := r.Claim(r.Context(), core.ClaimRequest{Worker: worker, Limit: limit, Hosted: hosted, Unbounded: true})
	if err != nil {
		r.Fatal(err)
	}
	return claims
}

func (r *rig) load(c core.Claim) core.Loaded {
	r.Helper()
	loaded, err := r.Load(r.Context(), []core.LoadRequest{{Claim: c, Limit: 100}})
	if err != nil || len(loaded) != 1 {
		r.Fatalf("load %v: %v, %v", c, loaded, err)
	}
	return loaded[0]
}

func (r *rig) epoch() int64 {
	r.Helper()
	return get[int64](r, "select registry_epoch from keyline.meta")
}

// flushed hands flushes to the committer and waits for the answers, which are in their order.
func (r *rig) flushed(flushes ...core.Flush) []core.FlushResult {
	r.Helper()
	epoch := r.epoch()
	results := make([]core.FlushResult, len(flushes))
	var wg sync.WaitGroup
	for i, f := range flushes {
		wg.Add(1)
		r.Flush(&f, epoch, func(res core.FlushResult) {
			results[i] = res
			wg.Done()
		})
	}
	wg.Wait()
	return results
}

func (r *rig) flush1(f core.Flush) core.FlushResult {
	r.Helper()
	return r.flushed(f)[0]
}

// settle asks to settle a claimed record at its loaded head.
func settle(l core.Loaded) core.Flush {
	return core.Flush{Record: l.Record, Token: l.Token, Head: l.Head, Cursor: l.Head, Then: core.Settle}
}

// definition is a consumer of all events.
func definition(name string, change ...func(*Definition)) Definition {
	jitter := 0.1
	d := Definition{Consumer: core.Consumer{
		Name: name, Revision: 1, Types: []string{"*"}, OnUnsupported: keylinetype.SkipUnsupported, Start: keylinetype.Now(),
		Effect: keylinetype.Database(), OnDead: keylinetype.Advance, Scope: keylinetype.OneForOne,
		Retry: keylinetype.RetryPolicy{Delays: keylinetype.DefaultRetryDelays(), Jitter: &jitter},
	}}
	for _, f := range change {
		f(&d)
	}
	return d
}

// register registers consumers and returns the id of the first.
func (r *rig) register(defs ...Definition) int32 {
	r.Helper()
	if err := r.Register(r.Context(), defs, ""); err != nil {
		r.Fatal(err)
	}
	id, err := r.FindConsumer(r.Context(), defs[0].Name)
	if err != nil {
		r.Fatal(err)
	}
	return id
}

// sweepAll sweeps until nothing more can be done now.
func (r *rig) sweepAll() {
	r.Helper()
	for more := true; more; {
		var err error
		if more, err = r.Sweep(r.Context()); err != nil {
			r.Fatal(err)
		}
	}
}

// blocked waits until somebody's statement waits for a lock.
func (r *rig) blocked(statement string) {
	r.Helper()
	testdb.Eventually(r, func() bool {
		return get[int64](r, `select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'
			and state = 'active' and query ilike '%' || $1 || '%'`, statement) > 0
	}, "%s to wait for a lock", statement)
}

// overtaken holds a call up when it has read the clock and comes to a table, lets something happen there, and then
// lets it go on.
func (r *rig) overtaken(call, table string, f func() error, meanwhile string, args ...any) {
	r.Helper()
	tx := r.begin()
	r.in(tx, "lock table keyline."+table+" in access exclusive mode")
	done := background(f)
	r.blocked(call)
	r.in(tx, meanwhile, args...)
	r.commit(tx)
	if err := soon(r, done, call); err != nil {
		r.Fatal(err)
	}
}

// soon fails the test instead of hanging it.
func soon[T any](r *rig, ch <-chan T, what string) T {
	r.Helper()
	timer := clock.Real().NewTimer(time.Minute)
	defer timer.Stop()
	select {
	case v := <-ch:
		return v
	case <-timer.C():
		r.Fatalf("%s did not happen", what)
		panic("unreachable")
	}
}

func seeded(t *testing.T) *clock.Rand {
	seed := clock.RandomSeed()
	t.Logf("seed %d", seed)
	return clock.NewRand(seed)
}

func keyOf(i int) string { return fmt.Sprintf("r%d", i) }

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// ahead is a flush as it waits for the committer.
func ahead(f core.Flush, epoch int64) pending {
	return pending{record: f.Record, flush: &f, epoch: epoch}
}
