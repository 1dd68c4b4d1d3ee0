package doctor

import (
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/testdb"
	"github.com/keylinehq/keyline/migrations"
)

// patient is a database, and how the doctor looks at it.
type patient struct {
	*testing.T
	db   *testdb.DB
	opts Options
}

// healthy is an installation with a worker that runs the one consumer.
func healthy(t *testing.T) *patient {
	t.Helper()
	p := admitted(t, testdb.New(t))
	p.exec(`insert into keyline.consumers (name, status, revision, types, on_unsupported, start_kind, effect, retry_delays_ms, retry_jitter, on_dead, scope, transactional)
		values ('c', 'active', 1, '{*}', 'skip', 'now', 'none', '{}', 0, 'advance', 'one_for_one', false)`)
	p.exec(`insert into keyline.workers (name, instance, host, pid, lease, consumers) values ('w', gen_random_uuid(), 'h', 1, '1 day', '{c}')`)
	return p
}

func admitted(t *testing.T, db *testdb.DB) *patient {
	t.Helper()
	pool, err := pgxpool.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	return &patient{t, db, Options{Pool: pool, Schema: "keyline", Clock: clock.Real()}}
}

func (p *patient) exec(sql string) {
	p.Helper()
	if _, err := p.db.Connect().PgConn().Exec(p.Context(), sql).ReadAll(); err != nil {
		p.Fatal(err)
	}
}

func (p *patient) run() Report {
	p.Helper()
	r, err := Run(p.Context(), p.opts)
	if err != nil {
		p.Fatal(err)
	}
	return r
}

func (r Report) check(id string) Check {
	if i := slices.IndexFunc(r.Checks, func(c Check) bool { return c.ID == id }); i >= 0 {
		return r.Checks[i]
	}
	return Check{}
}

// shows waits until a check comes to this status with these words, and no other check fails.
func (p *patient) shows(id string, status Status, words ...string) {
	p.Helper()
	var last Report
	testdb.Eventually(p, func() bool {
		last = p.run()
		c := last.check(id)
		return c.Status == status && !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(c.Detail, w) })
	}, "%s is %s about %q", id, status, words)
	if c := last.check(id); status != OK && c.Fix == "" {
		p.Errorf("%+v says nothing of what to do", c)
	}
	for _, c := range last.Checks {
		if c.ID != id && c.Status == Fail {
			p.Errorf("also: %+v", c)
		}
	}
	if last.OK != (status != Fail) {
		p.Errorf("ok is %v with %s %s", last.OK, id, status)
	}
}

func TestAHealthyInstallationPassesEveryCheck(t *testing.T) {
	t.Parallel()
	p := healthy(t)
	p.opts.Limits.ClockOffset = time.Hour
	r := p.run()
	want := []string{"connection"}
	for _, c := range checks {
		want = append(want, c.id)
	}
	var got []string
	for _, c := range r.Checks {
		got = append(got, c.ID)
		// The server is what it is, and other tests' sessions are on it too.
		if c.Status != OK && c.ID != "server_version" && c.ID != "connections" || c.Status == Fail || c.Detail == "" || (c.Status == OK) != (c.Fix == "") {
			t.Errorf("%+v", c)
		}
	}
	if !r.OK || !slices.Equal(got, want) {
		t.Errorf("%v: %v, want %v", r.OK, got, want)
	}
}

func TestVersionsOfTheServer(t *testing.T) {
	t.Parallel()
	for number, want := range map[int]Status{140010: Fail, 150002: Warn, 150015: Warn, 150018: OK, 150099: OK, 180000: Warn, 180001: OK, 250000: OK} {
		if f := version(number, "x"); f.status != want {
			t.Errorf("%d: %+v, want %s", number, f, want)
		}
	}
}

func TestWhatIsWrongWithTheServerIsFound(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, stage string
		change      func(*Options)
		id          string
		status      Status
		words       string
	}{
		{name: "read-only", stage: `alter database DB set default_transaction_read_only = on`, id: "primary", status: Fail, words: "read-only"},
		{name: "older schema", stage: `update keyline.schema_version set version = 0`, id: "schema", status: Fail, words: "not installed"},
		{name: "newer schema", stage: `update keyline.schema_version set version = 99; update keyline.meta set oldest_binary = 98`, id: "schema", status: Fail, words: "newer"},
		{name: "newer schema that serves this binary", stage: `update keyline.schema_version set version = 99`, id: "schema", status: Warn, words: "still serves"},
		{name: "no autovacuum", stage: `alter table keyline.mailboxes set (autovacuum_enabled = off)`, id: "autovacuum", status: Fail, words: "mailboxes"},
		{name: "queue", change: func(o *Options) { o.Limits.QueueUsage = -1 }, id: "notify_queue", status: Warn, words: "full"},
		{name: "connections", stage: `alter database DB connection limit 12`, id: "connections", status: Warn, words: "the database's connection limit lets in 12"},
		{name: "clock", change: func(o *Options) { o.Clock = ahead{clock.Real()} }, id: "clock", status: Warn, words: "differ by -1h"},
		{name: "silent worker", stage: `update keyline.workers set lease = '15 s', beat_at = now() - interval '1 minute'`, id: "workers", status: Warn, words: "w#1 for 1m"},
		{name: "no worker", stage: `update keyline.workers set status = 'left', ended_at = now(); update keyline.consumers set status = 'paused'`, id: "workers", status: Warn, words: "no worker lives"},
		{name: "claims of the dead", stage: `update keyline.workers set status = 'lost', ended_at = now(); update keyline.consumers set status = 'paused';
			insert into keyline.mailboxes (record_id, due_at, claimed_by, claimed_at) values (1, now(), 1, now())`, id: "workers", status: Fail, words: "hold claims"},
		{name: "unhosted", stage: `update keyline.workers set consumers = '{d}'`, id: "unhosted", status: Warn, words: "no live worker runs c"},
		{name: "unhosted with work", stage: `update keyline.workers set consumers = '{d}';
			insert into keyline.mailboxes (record_id, due_at, wants, wants_due_at) values (1, 'infinity', '{1}', now())`, id: "unhosted", status: Fail, words: "work waits"},
		{name: "work and nobody", stage: `update keyline.workers set status = 'left', ended_at = now();
			insert into keyline.mailboxes (record_id, due_at) values (1, now())`, id: "unhosted", status: Fail, words: "work waits"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := healthy(t)
			if c.stage != "" {
				p.exec(strings.ReplaceAll(c.stage, "DB", p.db.Name))
			}
			if c.change != nil {
				c.change(&p.opts)
			}
			p.shows(c.id, c.status, c.words)
		})
	}
}

// ahead is a clock that is an hour fast.
type ahead struct{ clock.Clock }

func (c ahead) Now() time.Time { return c.Clock.Now().Add(time.Hour) }

func TestSessionsThatHoldThingsUpAreNamed(t *testing.T) {
	t.Parallel()
	p := healthy(t)
	p.opts.Limits.IdleInTransaction, p.opts.Limits.Pinned = time.Nanosecond, time.Nanosecond
	conn := p.db.Connect()
	for _, sql := range []string{"set application_name = 'forgetful'", "begin isolation level repeatable read", "select count(*) from keyline.records"} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	p.shows("idle_in_transaction", Warn, "(forgetful)")
	p.shows("xmin_pins", Warn, "the transaction of pid", "(forgetful)")
	if _, err := conn.Exec(t.Context(), "rollback"); err != nil {
		t.Fatal(err)
	}
	p.shows("idle_in_transaction", OK)
	p.shows("xmin_pins", OK)
	p.exec(`begin; insert into keyline.sweep_left values (1, 1); prepare transaction '` + p.db.Name + `'`)
	p.shows("xmin_pins", Warn, "prepared transaction "+p.db.Name)
	p.shows("idle_in_transaction", OK)
	p.exec(`rollback prepared '` + p.db.Name + `'`)
	p.shows("xmin_pins", OK)
}

func TestBloatOfAHotTableIsFound(t *testing.T) {
	t.Parallel()
	p := healthy(t)
	p.opts.Limits.DeadRows = 1000
	p.exec(`insert into keyline.mailboxes (record_id, due_at) select i, 'infinity' from generate_series(1, 5000) i`)
	p.shows("bloat", OK)
	// So that no vacuum comes in between; that is found, too.
	p.exec(`alter table keyline.mailboxes set (autovacuum_enabled = off)`)
	p.exec(`delete from keyline.mailboxes; select pg_stat_force_next_flush()`)
	testdb.Eventually(t, func() bool { return p.run().check("bloat").Status == Warn }, "the dead rows are seen")
	if c := p.run().check("bloat"); !strings.Contains(c.Detail, "mailboxes: 5000 dead rows") || c.Fix == "" {
		t.Errorf("%+v", c)
	}
}

func TestMissingPrivilegesAreNamed(t *testing.T) {
	t.Parallel()
	p := healthy(t)
	role := p.db.Name + "_role"
	p.exec(`create role ` + role)
	defer p.exec(`drop owned by ` + role + `; drop role ` + role) // it is the server's, not the database's
	p.opts.Pool.ConnConfig.RuntimeParams["role"] = role
	if c := p.run().check("schema"); c.Status != Fail || !strings.Contains(c.Detail, "permission denied for schema keyline") || !strings.HasPrefix(c.Fix, "grant keyline_worker to ") {
		t.Errorf("a role without any: %+v", c)
	}
	p.exec(`grant select on keyline.schema_version, keyline.meta to ` + role + `; grant usage on schema keyline to ` + role)
	c := p.run().check("privileges")
	if c.Status != Fail || !strings.Contains(c.Detail, "a worker as "+role+" lacks INSERT on audit") || !strings.Contains(c.Detail, "more") {
		t.Errorf("%+v", c)
	}
	p.exec(`grant all on all tables in schema keyline to ` + role + `; grant all on all sequences in schema keyline to ` + role + `;
		grant execute on all functions in schema keyline to ` + role)
	p.shows("privileges", Warn, "does not see other roles' sessions")
	p.exec(`grant pg_read_all_stats to ` + role)
	p.shows("privileges", OK)
	p.exec(`revoke execute on function keyline.wake(text) from public, ` + role)
	p.shows("privileges", Fail, "lacks EXECUTE on wake")
}

func TestTheWorkersRoleHasAllThatAWorkerNeeds(t *testing.T) {
	t.Parallel()
	p := healthy(t)
	if err := migrations.Roles(t.Context(), p.db.Connect(), "keyline"); err != nil {
		t.Fatal(err)
	}
	for role, status := range map[string]Status{"keyline_worker": Warn, "keyline_reader": Fail, "keyline_operator": Fail} {
		p.opts.Pool.ConnConfig.RuntimeParams["role"] = role
		if c := p.run().check("privileges"); c.Status != status {
			t.Errorf("%s: %+v", role, c)
		}
	}
}

// Promise: whatever the worker's role is given to write with is missed where it is not there.
func TestEachMissingRightOfAWorkerIsNamed(t *testing.T) {
	t.Parallel()
	p := healthy(t)
	conn := p.db.Connect()
	if err := migrations.Roles(t.Context(), conn, "keyline"); err != nil {
		t.Fatal(err)
	}
	rows, err := conn.Query(t.Context(), `
		select distinct c.relname, a.privilege_type, c.relkind = 'S' from pg_class c
		left join pg_attribute b on b.attrelid = c.oid
		cross join lateral (select * from aclexplode(c.relacl) union all select * from aclexplode(b.attacl)) a
		where c.relnamespace = 'keyline'::regnamespace and a.grantee = 'keyline_worker'::regrole and a.privilege_type <> 'SELECT'`)
	if err != nil {
		t.Fatal(err)
	}
	type right struct {
		Relation, Privilege string
		Sequence            bool
	}
	rights, err := pgx.CollectRows(rows, pgx.RowToStructByPos[right])
	if err != nil || len(rights) < 20 {
		t.Fatalf("%d rights: %v", len(rights), err)
	}
	p.opts.Pool.ConnConfig.RuntimeParams["role"] = "keyline_worker"
	for _, r := range rights {
		on := r.Privilege + " on " + map[bool]string{true: "sequence "}[r.Sequence] + "keyline." + r.Relation
		p.exec("revoke " + on + " from keyline_worker")
		if c := p.run().check("privileges"); c.Status != Fail || !strings.HasSuffix(c.Detail, " lacks "+r.Privilege+" on "+r.Relation) {
			t.Errorf("%s: %+v", on, c)
		}
		p.exec("grant " + on + " to keyline_worker")
	}
}

func TestAnEmptyDatabaseAndNoServer(t *testing.T) {
	t.Parallel()
	p := admitted(t, testdb.NewEmpty(t))
	r := p.run()
	if c := r.check("schema"); r.OK || c.Status != Fail || !strings.Contains(c.Fix, "migrate up") || r.check("workers").ID != "" || r.check("connections").Status == Fail {
		t.Errorf("%+v", r)
	}
	p.opts.Pool.ConnConfig.Host, p.opts.Pool.ConnConfig.Fallbacks = t.TempDir(), nil
	if r = p.run(); r.OK || len(r.Checks) != 1 || r.check("connection").Status != Fail || r.check("connection").Fix == "" {
		t.Errorf("%+v", r)
	}
}

func TestTheEndpointOfTracesIsTried(t *testing.T) {
	t.Parallel()
	p := healthy(t)
	p.shows("otlp", OK, "go nowhere")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.opts.OTLP = map[string]string{"traces": "http://" + l.Addr().String() + "/v1/traces"}
	p.shows("otlp", OK, "traces at "+l.Addr().String())
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	p.shows("otlp", Warn, "not reached")
	p.opts.OTLP["traces"] = "localhost:4318"
	p.shows("otlp", Fail, "no http or https URL")
}
