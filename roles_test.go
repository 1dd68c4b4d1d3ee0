package keyline_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
	"github.com/keylinehq/keyline/migrations"
)

// withRoles is an installation with its roles.
func withRoles(t *testing.T) *testdb.DB {
	t.Helper()
	db := testdb.New(t)
	if err := migrations.Roles(t.Context(), db.Connect(), "keyline"); err != nil {
		t.Fatal(err)
	}
	return db
}

// login makes a role that may log in, a member of an installation's role, and
// returns a pool of its sessions.
func login(t *testing.T, db *testdb.DB, role string) *pgxpool.Pool {
	t.Helper()
	at := must(url.Parse(db.URL))(t)
	name := "t_" + db.Pool().Config().ConnConfig.Database + "_" + strings.TrimPrefix(role, "keyline_")
	exec(t, db.Pool(), fmt.Sprintf("create role %q login password 'secret' in role %s", name, role))
	t.Cleanup(func() {
		// Sessions go with the database; the role, which owns nothing, before it.
		if _, err := db.Pool().Exec(context.Background(), fmt.Sprintf("drop role %q", name)); err != nil {
			t.Errorf("drop role: %v", err)
		}
	})
	at.User = url.UserPassword(name, "secret")
	pool := must(pgxpool.New(t.Context(), at.String()))(t)
	t.Cleanup(pool.Close)
	if got := scalar[string](t, pool, "select session_user || ' ' || (select rolsuper from pg_roles where rolname = session_user)"); got != name+" false" {
		t.Fatalf("session of %s", got)
	}
	return pool
}

// refused runs statements each of which must be refused for want of a right.
func refused(t *testing.T, pool *pgxpool.Pool, statements ...string) {
	t.Helper()
	for _, text := range statements {
		_, err := pool.Exec(t.Context(), text)
		var state interface{ SQLState() string }
		if !errors.As(err, &state) || state.SQLState() != "42501" {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// What nobody may but the owner.
var owners = []string{
	"create table keyline.mine (x int)", "drop table keyline.events", "truncate keyline.events", "alter table keyline.events disable trigger all",
	"delete from keyline.events", "update keyline.events set payload = '{}'", "update keyline.events set type = 'x'",
	`insert into keyline.events (record_id, seq, id, type, version, payload, headers, occurred_at, created_at)
		values (1, 99, gen_random_uuid(), 'x', 1, '{}', '{}', now(), now())`,
	"update keyline.records set head = head + 1", "insert into keyline.records (tenant, record_key, head) values ('', 'x', 1)",
	"delete from keyline.records", "delete from keyline.audit", "update keyline.audit set actor = 'somebody else'",
	"insert into keyline.audit (actor, action, target, session_user_name) values ('a', 'b', 'c', 'postgres')",
	"insert into keyline.audit (actor, action, target, at) values ('a', 'b', 'c', now() - interval '1 day')",
	"delete from keyline.consumers", "delete from keyline.dead_letters", "delete from keyline.workers", "delete from keyline.commands",
	"update keyline.meta set payload_limit = 1", "update keyline.meta set oldest_binary = 1", "update keyline.meta set cluster_id = gen_random_uuid()", "update keyline.meta set registry_strict = true",
	"insert into keyline.event_types (type, version) values ('x', 1)", "insert into keyline.commands (record_id, kind, actor) values (1, 'retry', 'x')",
	"update keyline.schema_version set version = 99",
	"delete from keyline.api_tokens", "update keyline.api_tokens set role = 'admin'", "update keyline.api_tokens set hash = hash",
}

// What takes a worker.
var workers = []string{
	"update keyline.records set cursor = 0", "update keyline.mailboxes set claimed_by = null", "delete from keyline.mailboxes",
	"insert into keyline.mailboxes (record_id, due_at) values (1, now())", "update keyline.checkpoints set seq = 99", "delete from keyline.checkpoints",
	"update keyline.dead_letters set status = 'resolved'", "insert into keyline.failures (record_id, seq, consumer_id, attempt, at, error_code) values (1,1,1,1,now(),'x')",
	"insert into keyline.skips (record_id, seq, consumer_id, attempt, code, at) values (1,1,1,1,'x',now())", "update keyline.consumers set types = '{*}'",
	"insert into keyline.workers (name, instance, host, pid, lease) values ('x', gen_random_uuid(), 'h', 1, '1s')", "update keyline.workers set beat = 0",
	"update keyline.commands set applied_at = now(), done = true", "update keyline.meta set ordering = 'lockstep'", "select nextval('keyline.tokens')",
	"select keyline.claim(1, 1, '{}', '-infinity', null)", "select keyline.hand_back_orphans(1, '{}', '{}', now())", "select keyline.sweep(1, '{}')",
}

// What takes an admin.
var admins = []string{
	"select hash from keyline.api_tokens", "select * from keyline.api_tokens", "update keyline.api_tokens set revoked_at = now(), revoked_by = 'x'",
	"insert into keyline.api_tokens (name, role, hash, created_by) values ('x', 'admin', sha256('x'), 'x')",
}

// What shows payloads, and what appends.
var (
	payloads = []string{"select payload from keyline.events", "select headers from keyline.events", "select * from keyline.events", "table keyline.events"}
	appends  = []string{"select keyline.append('x', 'x', '{}')", `select keyline.append_many('[{"record_key": "x", "event_type": "x", "payload": {}}]')`}
	// What takes an operator.
	acts = []string{
		"select keyline.command(1, 'retry', 1, 1, null, 'x', 'x', 'x')", "select keyline.lock_record(1)", "update keyline.workers set drain_at = now()",
		"update keyline.consumers set status = 'paused'", "update keyline.meta set registry_epoch = 9", "insert into keyline.audit (actor, action, target) values ('a', 'b', 'c')",
		"select keyline.mark_lost(1, 0)", "select keyline.recover(1)",
		"select keyline.prune_events(0, now(), 1, 1, true, 'a', 'r', null)", "select keyline.prune_failures(now(), 1, 'a', 'r', null)",
		"select keyline.prune_workers(now(), 1, 'a', 'r', null)",
	}
)

func TestAProducerAppendsAndDoesNothingElse(t *testing.T) {
	t.Parallel()
	db := withRoles(t)
	pool, client := login(t, db, "keyline_producer"), newClient(t, keyline.ClientConfig{})
	event := keyline.NewEvent{Key: keyline.Key{Tenant: "acme", Record: "thing:1"}, Type: "thing.done", IdempotencyKey: "once", Payload: map[string]int{"n": 1}}
	first := must(client.Append(t.Context(), pool, event))(t)
	if again := must(client.Append(t.Context(), pool, event))(t); !again.Duplicate || again.ID != first.ID {
		t.Errorf("%+v", again)
	}
	if got := must(client.AppendMany(t.Context(), pool, []keyline.NewEvent{{Key: event.Key, Type: "a"}, {Type: "b"}}))(t); got[0].Seq != 2 {
		t.Errorf("%+v", got)
	}
	refused(t, pool, slices.Concat(owners, workers, payloads, admins, acts, []string{
		"select count(*) from keyline.records", "select seq from keyline.events", "select * from keyline.mailboxes", "select * from keyline.audit",
		"select * from keyline.meta", "select * from keyline.dead_letters", "select * from keyline.event_status", "select last_value from keyline.tokens",
		"select keyline.wake('x')", "select keyline.make_due(1, now())"})...)
}

func TestAReaderSeesAllButPayloadsAndChangesNothing(t *testing.T) {
	t.Parallel()
	db := withRoles(t)
	startWorker(t, db, keyline.Config{}, failing("c", func(c *keyline.Consumer) { park(c); c.Retry = quick() }))
	appendN(t, db, "thing:1", 1)
	deadLetters(t, db, 1)
	settled(t, db)
	pool, ctx, key := login(t, db, "keyline_reader"), t.Context(), keyline.Key{Record: "thing:1"}
	refused(t, pool, slices.Concat(owners, workers, payloads, appends, admins, acts)...)

	// Whatever role the program says that it has, the database decides.
	o := must(keyline.NewOperator(pool, keyline.OperatorConfig{Actor: "eve", Role: keyline.RoleOperator}))(t)
	id := eventID(t, db, 1)
	for name, read := range map[string]func() error{
		"InspectRecord": func() error { _, err := o.InspectRecord(ctx, key, 5); return err },
		"Stuck":         func() error { _, err := o.Stuck(ctx, 5); return err },
		"TraceEvent":    func() error { _, err := o.TraceEvent(ctx, id); return err },
		"InspectEvent":  func() error { _, err := o.InspectEvent(ctx, id); return err },
		"Records":       func() error { _, err := o.Records(ctx, keyline.RecordFilter{}); return err },
		"Events":        func() error { _, err := o.Events(ctx, key, keyline.EventFilter{}); return err },
		"InspectConsumer": func() error {
			_, err := o.InspectConsumer(ctx, "c")
			return err
		},
		"Workers":     func() error { _, err := o.Workers(ctx); return err },
		"DeadLetters": func() error { _, err := o.DeadLetters(ctx, keyline.DeadLetterFilter{}); return err },
		"Audit":       func() error { _, err := o.Audit(ctx, keyline.AuditFilter{}); return err },
		"Why":         func() error { _, err := o.Why(ctx, key); return err },
		"Behind":      func() error { _, err := o.Behind(ctx, "c", keyline.BehindFilter{}); return err },
		"Verify":      func() error { _, err := o.Verify(ctx, keyline.VerifyOptions{}); return err },
	} {
		if err := read(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, act := range map[string]func() error{
		"RetryDeadLetter":    func() error { _, err := o.RetryDeadLetter(ctx, 1, "r"); return err },
		"ResolveDeadLetter":  func() error { _, err := o.ResolveDeadLetter(ctx, 1, "r"); return err },
		"RetryConsumer":      func() error { _, err := o.RetryConsumer(ctx, id, "c", "r"); return err },
		"SkipHead":           func() error { _, err := o.SkipHead(ctx, key, "c", 0, "r"); return err },
		"PauseConsumer":      func() error { return o.PauseConsumer(ctx, "c", "r") },
		"RecoverStaleClaims": func() error { _, err := o.RecoverStaleClaims(ctx, "r"); return err },
		"DrainWorker":        func() error { _, err := o.DrainWorker(ctx, 1, "r"); return err },
	} {
		t.Run(name, func(t *testing.T) { wantError(t, act(), nil, keyline.CodePermissionDenied) })
	}
	if n := scalar[int](t, db.Pool(), "select (select count(*) from keyline.audit) + (select count(*) from keyline.commands)"); n != 0 {
		t.Errorf("%d rows were written", n)
	}
}

func TestAnOperatorsRoleActsAndNothingElse(t *testing.T) {
	t.Parallel()
	db, s, w := withRoles(t), newSwitched(), newSwitched()
	startWorker(t, db, keyline.Config{Name: "w", Lease: shortLease}, s.consumer("parks", park), w.consumer("waits", backoff))
	appendN(t, db, "thing:1", 2)
	deadLetters(t, db, 1)
	awaitReason(t, db, "waits", keyline.ReasonBackoff)
	pool, ctx, key := login(t, db, "keyline_operator"), t.Context(), keyline.Key{Record: "thing:1"}
	refused(t, pool, slices.Concat(owners, workers, payloads, appends, admins)...)

	o := must(keyline.NewOperator(pool, keyline.OperatorConfig{Actor: "olga", Role: keyline.RoleOperator}))(t)
	id := eventID(t, db, 1)
	must(o.RetryConsumer(ctx, id, "waits", "r"))(t)
	must(o.RetryDeadLetter(ctx, 1, "r"))(t)
	deadLetters(t, db, 1)
	must(o.ResolveDeadLetters(ctx, keyline.DeadLetterFilter{}, "r", keyline.BulkOptions{}))(t)
	awaitReason(t, db, "waits", keyline.ReasonBackoff)
	must(o.SkipHead(ctx, key, "waits", 0, "r"))(t)
	for _, change := range []func(context.Context, string, string) error{o.PauseConsumer, o.ResumeConsumer, o.DisableConsumer, o.RetireConsumer} {
		if err := change(ctx, "waits", "r"); err != nil {
			t.Error(err)
		}
	}
	exec(t, db.Pool(), `insert into keyline.workers (name, instance, host, pid, lease, consumers, beat_at)
		values ('silent', gen_random_uuid(), 'h', 1, '100 milliseconds', '{}', now() - interval '1 hour')`)
	if r, err := o.RecoverStaleClaims(ctx, "r"); err != nil && !errors.Is(err, &keyline.Error{Code: keyline.CodeNothingToDo}) {
		t.Errorf("%+v %v", r, err) // the worker may have been faster
	}
	must(o.DrainWorker(ctx, 1, "r"))(t)
	script(t, db, "update keyline.failures set at = now() - interval '8 days'")
	if r := must(o.Prune(ctx, "r", keyline.PruneOptions{OlderThan: time.Microsecond}))(t); r.Events == 0 || r.Failures+r.DeadLetters == 0 {
		t.Errorf("%+v", r)
	}
	refused(t, pool, "select keyline.prune_noted(1, 'olga', 'r', 't', '{}')")
	for _, line := range must(o.Audit(ctx, keyline.AuditFilter{}))(t) {
		if line.Actor != "olga" || !strings.HasPrefix(line.SessionUser, "t_") {
			t.Errorf("audit: %+v", line)
		}
	}
}

func TestAWorkersRoleDeliversAndNothingElse(t *testing.T) {
	t.Parallel()
	db, s := withRoles(t), newSeen()
	appendN(t, db, "thing:1", 3) // for a backfill
	exec(t, db.Pool(), "create table effects (record text, seq bigint, primary key (record, seq))")
	exec(t, db.Pool(), "grant insert on effects to keyline_worker")
	pool := login(t, db, "keyline_worker")
	start := func(consumers ...keyline.Consumer) *keyline.Worker {
		w := must(keyline.NewWorker(pool, keyline.Config{Lease: shortLease}, consumers...))(t)
		if err := w.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		return w
	}
	begin := func(c *keyline.Consumer) { c.Start = keyline.Beginning() }
	consumers := []keyline.Consumer{
		recording(s, "plain", begin),
		{Name: "tx", Types: []string{"*"}, Effect: keyline.Database(), Start: keyline.Beginning(), Retry: quick(time.Millisecond),
			HandleTx: func(ctx context.Context, tx pgx.Tx, d *keyline.Delivery) error {
				if d.Attempt == 1 && d.Seq == 1 {
					return errFails // booked outside of its transaction
				}
				s.add(d)
				_, err := tx.Exec(ctx, "insert into effects values ($1, $2)", d.Key.Record, d.Seq)
				return err
			}},
		{Name: "dies", Types: []string{"*"}, Effect: keyline.None(), Start: keyline.Beginning(), OnDead: keyline.Park, Retry: quick(time.Millisecond),
			Handle: func(context.Context, *keyline.Delivery) error { return errFails }},
		{Name: "skips", Types: []string{"*"}, Effect: keyline.None(), Start: keyline.Beginning(),
			Handle: func(context.Context, *keyline.Delivery) error { return keyline.Skip("no need") }},
	}
	w := start(consumers...)
	s.wait(t, 6)
	deadLetters(t, db, 1)
	settled(t, db)
	inOrder(t, s.of("plain", "thing:1"), 3)
	// Commands are applied, and a lost worker's claims are recovered.
	o := newOperator(t, db, keyline.RoleOperator)
	must(o.RetryDeadLetter(t.Context(), 1, "r"))(t)
	deadLetters(t, db, 1)
	must(o.ResolveDeadLetter(t.Context(), 1, "r"))(t)
	if err := o.DisableConsumer(t.Context(), "dies", "r"); err != nil {
		t.Fatal(err)
	}
	appendN(t, db, "thing:2", 1)
	s.wait(t, 8)
	settled(t, db)
	stop(t, w)
	appendN(t, db, "thing:1", 1)
	exec(t, db.Pool(), `insert into keyline.workers (name, instance, host, pid, lease, consumers) values ('silent', gen_random_uuid(), 'h', 1, '100 milliseconds', '{}')`)
	exec(t, db.Pool(), "update keyline.mailboxes set claimed_by = (select max(id) from keyline.workers), claimed_at = now()")
	w = start(consumers...)
	s.wait(t, 10)
	settled(t, db)
	if got := scalar[string](t, db.Pool(), "select status from keyline.workers where name = 'silent'"); got != "lost" {
		t.Errorf("the silent worker is %s", got)
	}
	// Health, as its metrics read it.
	awaitReadiness(t, w)
	stop(t, w)
	refused(t, pool, slices.Concat(owners, appends, admins, []string{"select keyline.command(1, 'retry', 1, 1, null, 'x', 'x', 'x')", "select keyline.lock_record(1)"})...)
}

func TestAnAdminsRoleLetsPeopleInAndNothingElse(t *testing.T) {
	t.Parallel()
	db := withRoles(t)
	startWorker(t, db, keyline.Config{}, failing("c", func(c *keyline.Consumer) { park(c); c.Retry = quick() }))
	appendN(t, db, "thing:1", 1)
	deadLetters(t, db, 1)
	pool, ctx := login(t, db, "keyline_admin"), t.Context()
	refused(t, pool, slices.Concat(owners, workers, appends)...)
	o := must(keyline.NewOperator(pool, keyline.OperatorConfig{Actor: "ada", Role: keyline.RoleAdmin}))(t)
	issued := must(o.CreateToken(ctx, keyline.NewToken{Name: "olga", Role: keyline.RoleOperator}, "r"))(t)
	gate := must(keyline.NewGate(pool, keyline.GateConfig{}))(t)
	olga, token, err := gate.Open(ctx, issued.Secret)
	if err != nil || token.Name != "olga" {
		t.Fatal(token, err)
	}
	must(olga.Payload(ctx, eventID(t, db, 1), "r"))(t)
	must(olga.ResolveDeadLetter(ctx, 1, "r"))(t)
	if list := must(o.Tokens(ctx, keyline.TokenFilter{}))(t); len(list) != 1 || list[0].LastUsedAt == nil {
		t.Errorf("%+v", list)
	}
	must(o.RevokeToken(ctx, issued.ID, "r"))(t)
	// Through an operator's login nobody reads payloads or manages tokens, and nobody comes in.
	operators := login(t, db, "keyline_operator")
	_, _, err = must(keyline.NewGate(operators, keyline.GateConfig{}))(t).Open(ctx, issued.Secret)
	wantError(t, err, nil, keyline.CodePermissionDenied)
	theirs := must(keyline.NewOperator(operators, keyline.OperatorConfig{Actor: "o", Role: keyline.RoleAdmin}))(t)
	_, err = theirs.Payload(ctx, eventID(t, db, 1), "r")
	wantError(t, err, nil, keyline.CodePermissionDenied)
	_, err = theirs.CreateToken(ctx, keyline.NewToken{Name: "x", Role: keyline.RoleAdmin}, "r")
	wantError(t, err, nil, keyline.CodePermissionDenied)
	must(theirs.Tokens(ctx, keyline.TokenFilter{}))(t)
}
