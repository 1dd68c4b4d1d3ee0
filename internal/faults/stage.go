package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/examples/crm/recorder"
	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/pgdev"
	"github.com/keylinehq/keyline/migrations"
)

// house is what the scenarios of a run share: a server that nobody harms.
type house struct {
	clock  clock.Clock
	self   string // this program, which is also its workers and the command
	seed   uint64 // of what is drawn at random
	server *pgdev.Server
	made   int
}

func (h *house) close() error {
	if h.server == nil {
		return nil
	}
	return h.server.Stop()
}

// settings are what scenarios want of a server.
var settings = map[string]string{"max_prepared_transactions": "16", "log_min_messages": "warning", "deadlock_timeout": "200ms"}

// stage is one scenario's world: a database and whoever works on it.
type stage struct {
	house    *house
	ctx      context.Context
	id       string
	problems []string
	found    map[string]any
	ends     []func()
	dir      string // logs of the workers

	server *pgdev.Server
	name   string // of the database
	pool   *pgxpool.Pool
	client *keyline.Client
}

func (t *stage) fail(format string, args ...any) {
	t.problems = append(t.problems, fmt.Sprintf(format, args...))
}

func (t *stage) fatal(format string, args ...any) {
	panic(verdict{"fail", fmt.Sprintf(format, args...)})
}

func (t *stage) skip(format string, args ...any) {
	panic(verdict{"skip", fmt.Sprintf(format, args...)})
}

func (t *stage) must(err error, what string) {
	if err != nil {
		t.fatal("%s: %v", what, err)
	}
}

func (t *stage) onEnd(f func()) { t.ends = append(t.ends, f) }

func (t *stage) end(keep bool) {
	for _, f := range slices.Backward(t.ends) {
		f()
	}
	if !keep && t.dir != "" {
		_ = os.RemoveAll(t.dir) // leftovers in the temporary directory do no harm
	}
}

// eventually polls for what sends no signal.
func (t *stage) eventually(what string, within time.Duration, cond func() bool) {
	if !t.within(within, cond) {
		t.fatal("in vain for %s: %s", within, what)
	}
}

// within polls likewise, and says whether it came true in time.
func (t *stage) within(limit time.Duration, cond func() bool) bool {
	end := t.house.clock.Mono() + limit
	for !cond() {
		if t.house.clock.Mono() > end {
			return false
		}
		t.pause(20 * time.Millisecond)
	}
	return true
}

// pause lets time pass, which in this suite is part of a fault.
func (t *stage) pause(d time.Duration) {
	if clock.Sleep(t.ctx, t.house.clock, d) != nil {
		t.fatal("the scenario takes too long")
	}
}

// open makes a database on the shared server.
func (t *stage) open() {
	if t.house.server == nil {
		s, err := pgdev.Start(t.ctx, pgdev.Options{TCP: true, Settings: settings})
		t.must(err, "start a server")
		t.house.server = s
	}
	t.server = t.house.server
	t.prepare()
}

// openOwn makes a database on a server of its own, which may be harmed.
func (t *stage) openOwn(o pgdev.Options) {
	if o.Settings == nil {
		o.Settings = settings
	}
	s, err := pgdev.Start(t.ctx, o)
	t.must(err, "start a server")
	t.onEnd(func() { _ = s.Stop() })
	t.server = s
	t.prepare()
}

func (t *stage) prepare() {
	dir, err := os.MkdirTemp("", "keyline-faults-"+t.id+"-")
	t.must(err, "make a directory")
	t.dir = dir
	t.house.made++
	t.name = fmt.Sprintf("faults_%d", t.house.made)
	admin, err := pgx.Connect(t.ctx, t.server.URL("postgres"))
	t.must(err, "connect")
	_, err = admin.Exec(t.ctx, "create database "+t.name)
	t.must(errors.Join(err, admin.Close(t.ctx)), "create a database")
	conn := t.connect()
	_, _, err = migrations.Up(t.ctx, conn, migrations.DefaultSchema)
	t.must(err, "migrate")
	t.pool = t.newPool(t.url(), 24)
	t.must(recorder.Install(t.ctx, t.pool), "install the recorder")
	t.exec("create schema faults; create table faults.gates (name text primary key);" +
		"create table faults.effects (consumer text, record_key text, seq bigint, key text, redelivered boolean)")
	t.client, err = keyline.NewClient(keyline.ClientConfig{})
	t.must(err, "make a client")
}

func (t *stage) url() string { return t.server.URL(t.name) }

func (t *stage) newPool(url string, size int32) *pgxpool.Pool {
	cfg, err := pgxpool.ParseConfig(url)
	t.must(err, "read a URL")
	cfg.MaxConns = size
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	t.must(err, "open a pool")
	t.onEnd(pool.Close)
	return pool
}

func (t *stage) connect() *pgx.Conn {
	conn, err := pgx.Connect(t.ctx, t.url())
	t.must(err, "connect")
	t.onEnd(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = conn.Close(ctx) // it may be dead by now
	})
	return conn
}

func (t *stage) exec(sql string, args ...any) {
	_, err := t.pool.Exec(t.ctx, sql, args...)
	t.must(err, sql)
}

func (t *stage) number(sql string, args ...any) int {
	var n int
	t.must(t.pool.QueryRow(t.ctx, sql, args...).Scan(&n), sql)
	return n
}

// try is number where the database may be away: -1.
func (t *stage) try(sql string, args ...any) int {
	ctx, cancel := context.WithTimeout(t.ctx, 5*time.Second)
	defer cancel()
	var n int
	if t.pool.QueryRow(ctx, sql, args...).Scan(&n) != nil {
		return -1
	}
	return n
}

// operator may do everything.
func (t *stage) operator() keyline.Operator {
	o, err := keyline.NewOperator(t.pool, keyline.OperatorConfig{Actor: "op", Role: keyline.RoleAdmin})
	t.must(err, "make an operator")
	return o
}

// do is an event's payload: what its handlers are to do.
type do map[string]any

func event(record string, d do) keyline.NewEvent {
	if d == nil {
		d = do{}
	}
	return keyline.NewEvent{Key: keyline.Key{Record: record}, Type: "fault.staged", Payload: d}
}

func (t *stage) append(record string, d do) { t.appendType(record, "fault.staged", d) }

func (t *stage) appendType(record, kind string, d do) uuid.UUID {
	e := event(record, d)
	e.Type = kind
	r, err := t.client.Append(t.ctx, t.pool, e)
	t.must(err, "append")
	return r.ID
}

// appendBulk appends n events of one type to each of some records, as fast as may be.
func (t *stage) appendBulk(records []string, kind string, n int) {
	events := make([]keyline.NewEvent, 0, 500)
	flush := func() {
		_, err := t.client.AppendMany(t.ctx, t.pool, events)
		t.must(err, "append many")
		events = events[:0]
	}
	for range n {
		for _, r := range records {
			e := event(r, nil)
			e.Type = kind
			if events = append(events, e); len(events) == cap(events) {
				flush()
			}
		}
	}
	if len(events) > 0 {
		flush()
	}
}

func (t *stage) appendN(record string, n int) {
	for range n {
		t.append(record, nil)
	}
}

// gate opens a gate that handlers wait at.
func (t *stage) gate(name string) {
	t.exec("insert into faults.gates values ($1) on conflict do nothing", name)
}

const begun = "select count(*) from crm.delivered_log where mark = 'begin' and record_key = $1 and seq = $2"

// running waits until a handler has begun this event.
func (t *stage) running(record string, seq int) {
	t.eventually(fmt.Sprintf("a handler begins %s %d", record, seq), 60*time.Second, func() bool { return t.try(begun, record, seq) > 0 })
}

// order is how a consumer's handler succeeded with a record's events.
func (t *stage) order(record, consumer string) (seqs string) {
	t.must(t.pool.QueryRow(t.ctx, `select coalesce(string_agg(seq::text, ' ' order by id), '') from crm.delivered_log
		where mark = 'done' and record_key = $1 and consumer = $2`, record, consumer).Scan(&seqs), "read the order")
	return seqs
}

// done counts what handlers have succeeded with.
func (t *stage) done(record string) int {
	return t.try("select count(distinct (consumer, record_key, seq)) from crm.delivered_log where mark = 'done' and record_key like $1", record)
}

func (t *stage) awaitDone(record string, n int, within time.Duration) {
	t.eventually(fmt.Sprintf("%d deliveries of %s", n, record), within, func() bool { return t.done(record) >= n })
}

// isNothingToDo says whether an act was refused because nothing would change.
func isNothingToDo(err error) bool {
	return errors.Is(err, &keyline.Error{Code: keyline.CodeNothingToDo})
}
