package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/internal/testdb"
	"github.com/keylinehq/keyline/outbox"
)

// typical is the outbox that most teams have.
const typical = `
create table outbox (
  id bigint generated always as identity primary key,
  created_at timestamptz not null default clock_timestamp(),
  event_type text not null,
  payload jsonb,
  attempts integer not null default 0,
  processed_at timestamptz
);
create index outbox_pending on outbox (created_at, id) where processed_at is null;`

func settings(change ...func(*outbox.Settings)) outbox.Settings {
	s := outbox.Settings{
		Table: "outbox", ID: "id", Created: "created_at", Key: "'activity:' || (payload->>'activity_id')", Type: "event_type", Payload: "payload",
		Pending: "processed_at is null", Done: "processed_at = clock_timestamp()",
	}
	for _, f := range change {
		f(&s)
	}
	return s
}

var by = outbox.By{Actor: "olga", Reason: "we move"}

// impatient gives up soon.
var impatient = outbox.Patience{Wait: 300 * time.Millisecond, Lock: 50 * time.Millisecond, Pause: 10 * time.Millisecond}

// brisk is patient, and asks often.
var brisk = outbox.Patience{Wait: time.Minute, Lock: 50 * time.Millisecond, Pause: 5 * time.Millisecond}

// rig is a database with an outbox in it.
type rig struct {
	*testing.T
	db *testdb.DB
}

func newRig(t *testing.T, ddl string) *rig {
	t.Helper()
	t.Parallel()
	r := &rig{t, testdb.New(t)}
	r.exec(ddl)
	return r
}

// prepared is a rig whose outbox is prepared, and guarded.
func prepared(t *testing.T) *rig {
	t.Helper()
	r := newRig(t, typical)
	r.prepare(settings(), true)
	return r
}

// role is a login that may insert into the outbox, and nothing else. Roles belong to the whole server.
func (r *rig) role(part string) string {
	r.Helper()
	name := part + "_" + r.db.Name
	r.exec(`create role ` + name + ` login; grant usage on schema public to ` + name + `; grant insert on outbox to ` + name)
	r.Cleanup(func() { // before the pool's, which belongs to the database
		_, err := r.db.Pool().Exec(context.WithoutCancel(r.Context()), `drop owned by `+name+`; drop role `+name)
		if err != nil {
			r.Error(err)
		}
	})
	return name
}

func (r *rig) prepare(s outbox.Settings, guard bool) {
	r.Helper()
	if _, err := r.open(s.Table).Prepare(r.Context(), s, by, outbox.PrepareOptions{Guard: guard, Patience: brisk}); err != nil {
		r.Fatal(err)
	}
}

// conn is a connection of its own.
func (r *rig) conn() *pgx.Conn {
	r.Helper()
	c, err := pgx.Connect(r.Context(), r.db.URL)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = c.Close(context.WithoutCancel(r.Context())) })
	return c
}

func (r *rig) open(table string) *outbox.Outbox {
	r.Helper()
	o, err := outbox.Open(r.conn(), r.db.Schema, table)
	if err != nil {
		r.Fatal(err)
	}
	return o
}

func (r *rig) exec(sql string, args ...any) {
	r.Helper()
	if _, err := r.db.Pool().Exec(r.Context(), sql, args...); err != nil {
		r.Fatalf("%s: %v", sql, err)
	}
}

func (r *rig) number(sql string, args ...any) int64 {
	r.Helper()
	var n int64
	if err := r.db.Pool().QueryRow(r.Context(), sql, args...).Scan(&n); err != nil {
		r.Fatalf("%s: %v", sql, err)
	}
	return n
}

func (r *rig) text(sql string, args ...any) string {
	r.Helper()
	var s string
	if err := r.db.Pool().QueryRow(r.Context(), sql, args...).Scan(&s); err != nil {
		r.Fatalf("%s: %v", sql, err)
	}
	return s
}

func (r *rig) texts(sql string, args ...any) []string {
	r.Helper()
	rows, err := r.db.Pool().Query(r.Context(), sql, args...)
	if err != nil {
		r.Fatalf("%s: %v", sql, err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		r.Fatalf("%s: %v", sql, err)
	}
	return list
}

func (r *rig) cutover() outbox.Moved {
	r.Helper()
	m, err := r.open("outbox").Cutover(r.Context(), by, outbox.CutoverOptions{Patience: brisk})
	if err != nil {
		r.Fatal(err)
	}
	return m
}

func (r *rig) back(force bool) outbox.Returned {
	r.Helper()
	b, err := r.open("outbox").Back(r.Context(), by, outbox.BackOptions{Force: force, Patience: brisk})
	if err != nil {
		r.Fatal(err)
	}
	return b
}

func (r *rig) state() outbox.State {
	r.Helper()
	s, err := r.open("outbox").Status(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	return s.State
}

const oldInsert = `insert into outbox (event_type, payload) values ('activity.noted', jsonb_build_object('activity_id', $1::text, 'n', $2::int))`

// stream is the numbers of a record's events in Keyline, in their order.
func (r *rig) stream(key string) []string {
	r.Helper()
	return r.texts(`select e.payload->>'n' from keyline.events e join keyline.records r on r.id = e.record_id where r.record_key = $1 order by e.seq`, key)
}

// drainOnce is one batch of the old drainer: it takes the lock if lock is true, reads in order, gives each row to deliver, and marks it.
func drainOnce(ctx context.Context, conn *pgx.Conn, lock bool, limit int, deliver func(key, n string)) (int, error) {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if lock {
		if _, err := tx.Exec(ctx, `select outbox_keyline_lock()`); err != nil {
			return 0, err
		}
	}
	rows, err := tx.Query(ctx, `select id, coalesce(payload->>'activity_id', ''), coalesce(payload->>'n', '') from outbox where processed_at is null order by created_at, id limit $1 for update`, limit)
	if err != nil {
		return 0, err
	}
	type row struct {
		ID     int64
		Key, N string
	}
	batch, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	if err != nil {
		return 0, err
	}
	ids := make([]int64, 0, len(batch))
	for _, b := range batch {
		ids = append(ids, b.ID)
	}
	if _, err := tx.Exec(ctx, `update outbox set processed_at = now(), attempts = attempts + 1 where id = any($1)`, ids); err != nil {
		return 0, err
	}
	for _, b := range batch {
		deliver(b.Key, b.N)
	}
	return len(batch), tx.Commit(ctx)
}

func wantState(t testing.TB, err error, code string) {
	t.Helper()
	var state interface{ SQLState() string }
	if !errors.As(err, &state) || state.SQLState() != code {
		t.Fatalf("error %v, want SQLSTATE %s", err, code)
	}
}

func want[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: %v, want %v", what, got, want)
	}
}

func wantList(t testing.TB, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("%s: %v, want %v", what, got, want)
	}
}

func numbers(from, to int) []string {
	var list []string
	for n := from; n <= to; n++ {
		list = append(list, fmt.Sprint(n))
	}
	return list
}
