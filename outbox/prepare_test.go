package outbox_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/outbox"
)

// Before the columns exist, a probe reads the table as it is, says what of its rows would go wrong, and changes nothing.
func TestProbeReadsThePhysicalTableAndChangesNothing(t *testing.T) {
	r := newRig(t, typical)
	r.exec(oldInsert, "7", 1)
	r.exec(`insert into outbox (event_type, payload) values ('activity.noted', '{}'), (' ', '{"activity_id": 1}'), ('huge', jsonb_build_object('x', repeat('x', 2 << 20)))`)
	app := r.role("app")
	before := r.text(`select string_agg(a.attname, ',' order by a.attnum) from pg_attribute a where a.attrelid = 'outbox'::regclass and a.attnum > 0`)
	p, err := r.open("outbox").Probe(r.Context(), settings())
	if err != nil {
		t.Fatal(err)
	}
	want(t, "state", p.State, outbox.StateUntouched)
	want(t, "has a key column", p.HasKeyColumn, false)
	want(t, "columns", len(p.Columns), 6)
	want(t, "indexes", len(p.Indexes), 2)
	want(t, "pending", p.Pending.Rows, 4)
	want(t, "without a key", p.Pending.WithoutKey, 4)
	want(t, "unusable keys", p.UnusableKeys.Rows, 2)
	want(t, "blockers", len(p.Blockers), 0)
	want(t, "problems", len(p.Problems), 2)
	want(t, "an example", p.Problems[0].Example+p.Problems[1].Example, "43")
	if p.Pending.Oldest == nil || !strings.HasPrefix(*p.Pending.Oldest, "20") {
		t.Errorf("oldest %v", p.Pending.Oldest)
	}
	wantList(t, "writers without append", p.WritersWithoutAppend, app)
	want(t, "ready", p.Ready(), false)
	want(t, "events", r.number(`select count(*) from keyline.events`), 0)
	want(t, "columns after it", r.text(`select string_agg(a.attname, ',' order by a.attnum) from pg_attribute a where a.attrelid = 'outbox'::regclass and a.attnum > 0`), before)
	want(t, "triggers", r.number(`select count(*) from pg_trigger where tgrelid = 'outbox'::regclass`), 0)
	want(t, "audit", r.number(`select count(*) from keyline.audit`), 0)
}

// A program that has cached the old shape of the table goes on, and its rows get the same keys as all others.
func TestAWriterThatCachedTheOldShapeCannotWriteNullKeys(t *testing.T) {
	r := newRig(t, typical)
	old := r.conn()
	if _, err := old.Prepare(r.Context(), "cached", oldInsert); err != nil {
		t.Fatal(err)
	}
	insert := func(n int) {
		if _, err := old.Exec(r.Context(), "cached", "7", n); err != nil {
			t.Fatal(err)
		}
	}
	insert(1)
	r.prepare(settings(), false)
	insert(2)
	r.exec(`insert into outbox (event_type, payload, keyline_key) values ('activity.noted', '{"n": 3}', 'own')`)
	r.exec(`insert into outbox (event_type, payload) values ('activity.noted', '{"n": 4}')`)
	wantList(t, "keys", r.texts(`select coalesce(keyline_key, 'null') from outbox order by id`), "null", "activity:7", "own", "")
	want(t, "rewritten", r.number(`select count(distinct xmin::text) from outbox`), 4)

	// Nobody is guarded yet: the old drainer goes on as it is.
	n, err := drainOnce(r.Context(), old, false, 10, func(string, string) {})
	if err != nil || n != 4 {
		t.Fatalf("drained %d: %v", n, err)
	}
}

func TestPrepareTwiceChangesNothingTheSecondTime(t *testing.T) {
	r := newRig(t, typical)
	for i, changed := range []bool{true, false} {
		p, err := r.open("outbox").Prepare(r.Context(), settings(), by, outbox.PrepareOptions{})
		if err != nil || p.Changed != changed || p.State != outbox.StatePrepared || p.Lock != `select "public"."outbox_keyline_lock"();` {
			t.Fatalf("%d: %+v, %v", i, p, err)
		}
	}
	// Other settings are taken, and so is the guard.
	other := settings(func(s *outbox.Settings) { s.Key = "payload->>'activity_id'" })
	p, err := r.open("public.outbox").Prepare(r.Context(), other, by, outbox.PrepareOptions{Guard: true})
	if err != nil || !p.Changed || p.State != outbox.StateGuarded {
		t.Fatalf("%+v, %v", p, err)
	}
	r.exec(oldInsert, "7", 1)
	want(t, "key", r.text(`select keyline_key from outbox`), "7")
	want(t, "audits", r.number(`select count(*) from keyline.audit where action = 'outbox_prepared' and actor = 'olga' and target = 'public.outbox'`), 2)
}

// While a long transaction keeps the table, prepare asks for a moment at a time, and other writers get through in between.
func TestPrepareGivesUpRatherThanMakeWritersWait(t *testing.T) {
	r := newRig(t, typical)
	long, err := r.conn().Begin(r.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := long.Exec(r.Context(), oldInsert, "7", 1); err != nil {
		t.Fatal(err)
	}
	_, err = r.open("outbox").Prepare(r.Context(), settings(), by, outbox.PrepareOptions{Patience: impatient})
	if !errors.Is(err, keyline.ErrUnavailable) {
		t.Fatalf("prepare beside a long transaction: %v", err)
	}
	want(t, "state", r.state(), outbox.StateUntouched)
	done := make(chan error)
	go func() {
		_, err := r.open("outbox").Prepare(r.Context(), settings(), by, outbox.PrepareOptions{Patience: brisk})
		done <- err
	}()
	writer := r.conn()
	if _, err := writer.Exec(r.Context(), `set lock_timeout = '10s'`); err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		if _, err := writer.Exec(r.Context(), oldInsert, "8", i); err != nil {
			t.Fatalf("a writer beside prepare: %v", err)
		}
	}
	if err := long.Commit(r.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	want(t, "state", r.state(), outbox.StatePrepared)
}

func TestSettingsThatTheTableDoesNotBearAreRefusedByName(t *testing.T) {
	r := newRig(t, typical)
	r.exec(`alter table outbox add column plain integer, add column stored text generated always as (payload->>'activity_id') stored, add column keyed integer`)
	r.exec(`create view looked as select * from outbox; create table parted (like outbox) partition by range (id)`)
	r.exec(`create table doubled (like outbox)`)
	for _, c := range []struct {
		change func(*outbox.Settings)
		says   string
	}{
		{func(s *outbox.Settings) { s.Key = "" }, "setting key is missing"},
		{func(s *outbox.Settings) { s.Key = "$keyline$" }, "setting key contains"},
		{func(s *outbox.Settings) { s.Done = "now()" }, "is no assignment"},
		{func(s *outbox.Settings) { s.Done = "a.b = 1" }, `"a.b" is no column`},
		{func(s *outbox.Settings) { s.Done = "gone = 1" }, "there is no column gone"},
		{func(s *outbox.Settings) { s.ID = "nothing" }, "there is no column nothing"},
		{func(s *outbox.Settings) { s.ID = "plain" }, "may be null"},
		{func(s *outbox.Settings) { s.ID = "attempts" }, "no unique index"},
		{func(s *outbox.Settings) { s.ID = "created_at" }, "has to be a number, a uuid or a text"},
		{func(s *outbox.Settings) { s.Created = "payload" }, "has to be a time or a number"},
		{func(s *outbox.Settings) { s.Key = "stored" }, "generated column stored"},
		{func(s *outbox.Settings) { s.Key = "nope" }, "setting key: "},
		{func(s *outbox.Settings) { s.Key = "'a'), ('b'" }, "setting key"},
		{func(s *outbox.Settings) { s.Payload = "event_type" }, "setting payload is not of type json or jsonb"},
		{func(s *outbox.Settings) { s.OccurredAt = "created_at at time zone 'UTC'" }, "setting occurred_at is not of type"},
		{func(s *outbox.Settings) { s.Pending = "attempts" }, "setting pending is not of type boolean"},
		{func(s *outbox.Settings) { s.Done = "attempts = 1" }, "leaves rows waiting"}, // though none waits
		{func(s *outbox.Settings) { s.Pending, s.Done = "attempts < 2", "attempts = attempts + 1" }, "leaves rows waiting"},
		{func(s *outbox.Settings) { s.KeyColumn = "keyed" }, "the key column keyed is no plain column of type text"},
		{func(s *outbox.Settings) { s.KeyColumn = "id" }, "must be three columns"},
		{func(s *outbox.Settings) { s.Table = "looked" }, "is no ordinary table"},
		{func(s *outbox.Settings) { s.Table = "parted" }, "is no ordinary table"},
		{func(s *outbox.Settings) { s.Table = "doubled" }, "no unique index"},
	} {
		s := settings(c.change)
		_, err := r.open(s.Table).Prepare(r.Context(), s, by, outbox.PrepareOptions{Patience: brisk})
		if !errors.Is(err, keyline.ErrInvalid) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("want %q: %v", c.says, err)
		}
	}
	if _, err := r.open("gone").Prepare(r.Context(), settings(), by, outbox.PrepareOptions{}); !errors.Is(err, keyline.ErrNotFound) {
		t.Errorf("a table that is not there: %v", err)
	}
	if _, err := r.open("outbox").Prepare(r.Context(), settings(), outbox.By{}, outbox.PrepareOptions{}); !errors.Is(err, keyline.ErrInvalid) {
		t.Errorf("without an actor: %v", err)
	}
	want(t, "state", r.state(), outbox.StateUntouched)
}

// Only the holder of the lock ends rows, in whatever way.
func TestTheGuardRefusesADrainerWithoutTheLock(t *testing.T) {
	r := prepared(t)
	r.exec(oldInsert, "7", 1)
	r.exec(oldInsert, "7", 2)
	conn := r.conn()
	ends := []string{
		`update outbox set processed_at = now() where id = 1`, `update outbox set id = default where id = 1`,
		`delete from outbox where id = 1`, `truncate outbox`,
	}
	for _, sql := range ends {
		_, err := conn.Exec(r.Context(), sql)
		wantState(t, err, "55000")
	}
	// Another session's lock is none of ours.
	holder := r.conn()
	if _, err := holder.Exec(r.Context(), `select outbox_keyline_lock(session => true)`); err != nil {
		t.Fatal(err)
	}
	_, err := drainOnce(r.Context(), conn, false, 10, func(string, string) {})
	wantState(t, err, "55000")
	// What ends no row needs no lock; what is done may be cleaned up by anybody.
	r.exec(`update outbox set attempts = attempts + 1`)
	n, err := drainOnce(r.Context(), conn, true, 1, func(string, string) {})
	if err != nil || n != 1 {
		t.Fatalf("drained %d: %v", n, err)
	}
	r.exec(`update outbox set processed_at = now() where id = 1`)
	r.exec(`delete from outbox where id = 1`)
	if _, err := holder.Exec(r.Context(), ends[0][:len(ends[0])-1]+"2"); err != nil {
		t.Fatalf("under the session's lock: %v", err)
	}
	// The lock comes before the reading, or says so; again it may be taken at any time.
	late, err := conn.Begin(r.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := late.Exec(r.Context(), `select from outbox`); err != nil {
		t.Fatal(err)
	}
	_, err = late.Exec(r.Context(), `select outbox_keyline_lock()`)
	wantState(t, err, "55000")
	if err := late.Rollback(r.Context()); err != nil {
		t.Fatal(err)
	}
	r.exec(`do $$ begin perform outbox_keyline_lock(); perform from outbox; perform outbox_keyline_lock(); end $$`)
	_, err = conn.Exec(r.Context(), `begin isolation level repeatable read; select outbox_keyline_lock()`)
	wantState(t, err, "55000")
}

func TestBackfillGivesOldRowsTheKeysThatNewOnesGet(t *testing.T) {
	r := newRig(t, typical)
	for n := range 25 {
		r.exec(oldInsert, fmt.Sprint(n%3), n)
	}
	r.exec(`insert into outbox (event_type, payload) values ('blank', '{"activity_id": null}'); update outbox set processed_at = now() where id <= 5`)
	r.prepare(settings(), false)
	if _, err := r.open("outbox").Backfill(r.Context(), by, outbox.BackfillOptions{}); !errors.Is(err, keyline.ErrConflict) {
		t.Fatalf("without the guard: %v", err)
	}
	r.prepare(settings(), true)

	// A row that somebody has locked is passed over, and the rest is filled in; then it gives up, and what is done stays.
	holder, err := r.conn().Begin(r.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := holder.Exec(r.Context(), `select from outbox where id = 12 for update`); err != nil {
		t.Fatal(err)
	}
	b, err := r.open("outbox").Backfill(r.Context(), by, outbox.BackfillOptions{Chunk: 4, Patience: impatient})
	if !errors.Is(err, keyline.ErrUnavailable) || b.Rows != 20 {
		t.Fatalf("%+v, %v", b, err)
	}
	if err := holder.Rollback(r.Context()); err != nil {
		t.Fatal(err)
	}
	b, err = r.open("outbox").Backfill(r.Context(), by, outbox.BackfillOptions{Chunk: 4})
	if err != nil || b.Rows != 1 {
		t.Fatalf("%+v, %v", b, err)
	}
	want(t, "done rows with a key", r.number(`select count(*) from outbox where id <= 5 and keyline_key is not null`), 0)
	b, err = r.open("outbox").Backfill(r.Context(), by, outbox.BackfillOptions{Chunk: 4, AllRows: true})
	if err != nil || b.Rows != 5 {
		t.Fatalf("%+v, %v", b, err)
	}
	want(t, "keys that are not the extraction's", r.number(
		`select count(*) from outbox where keyline_key is distinct from coalesce('activity:' || (payload->>'activity_id'), '')`), 0)
	want(t, "audits", r.number(`select count(*) from keyline.audit where action = 'outbox_backfilled'`), 3)
	want(t, "waiting", r.number(`select count(*) from outbox where processed_at is null`), 21)
}
