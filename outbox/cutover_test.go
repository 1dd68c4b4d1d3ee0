package outbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
	"github.com/keylinehq/keyline/migrations"
	"github.com/keylinehq/keyline/outbox"
)

func TestCutoverAppendsWhatWaitsInOrderAndForwardsWhatComes(t *testing.T) {
	r := newRig(t, typical)
	// The order is (created, id), not the order in which rows came.
	r.exec(`insert into outbox (created_at, event_type, payload) values
		('2026-01-03', 'activity.noted', '{"activity_id": "7", "n": 3}'), ('2026-01-01', 'activity.noted', '{"activity_id": "7", "n": 1}'),
		('2026-01-02', 'activity.noted', '{"activity_id": "8", "n": 1}'), ('2026-01-02', 'activity.noted', '{"activity_id": "7", "n": 2}')`)
	r.exec(`insert into outbox (event_type, payload, processed_at) values ('activity.noted', '{"activity_id": "7", "n": 0}', now())`)
	r.prepare(settings(), true)
	m := r.cutover()
	want(t, "moved", m.Rows, 4)
	want(t, "duplicates", m.Duplicates, 0)
	want(t, "state", r.state(), outbox.StateForwarding)

	// The old application goes on as it always did.
	r.exec(`insert into outbox (event_type, payload) values ('activity.noted', '{"activity_id": "7", "n": 4}'), ('activity.noted', '{"activity_id": "7", "n": 5}')`)
	wantList(t, "stream of 7", r.stream("activity:7"), numbers(1, 5)...)
	wantList(t, "stream of 8", r.stream("activity:8"), "1")
	want(t, "waiting", r.number(`select count(*) from outbox where processed_at is null`), 0)
	want(t, "handed over", r.number(`select count(*) from outbox where keyline_at is not null and keyline_key is not null`), 6)
	want(t, "occurred when created", r.number(
		`select count(*) from keyline.events e join outbox o on e.payload = o.payload and e.occurred_at = o.created_at`), 6)
	want(t, "idempotency keys", r.number(`select count(distinct e.idempotency_key) from keyline.events e where e.idempotency_key ~ '^outbox:public\.outbox:[0-9]+:[0-9.]+$'`), 6)
	want(t, "mailboxes", r.number(`select count(*) from keyline.mailboxes`), 2)
	want(t, "audits", r.number(`select count(*) from keyline.audit where action = 'outbox_cutover' and actor = 'olga' and reason = 'we move' and detail->>'rows' = '4'`), 1)

	// What is rolled back is not forwarded, and what is done already never was anybody's to deliver.
	tx, err := r.conn().Begin(r.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(r.Context(), oldInsert, "7", 6); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(r.Context()); err != nil {
		t.Fatal(err)
	}
	r.exec(`insert into outbox (event_type, payload, processed_at, keyline_at) values ('activity.noted', '{"activity_id": "7", "n": 6}', now(), now())`)
	r.exec(`insert into outbox (id, event_type, payload) overriding system value values (1, 'activity.noted', '{"activity_id": "7", "n": 6}') on conflict do nothing`)
	wantList(t, "stream of 7", r.stream("activity:7"), numbers(1, 5)...)
}

// Every row is delivered by exactly one of the two, those of a record in the order in which they were written, while
// writers of the old shape and an old drainer go on beside the cut-over.
func TestNoRowIsLostRepeatedOrOvertakenByACutoverUnderTraffic(t *testing.T) {
	r := prepared(t)
	const records, writers = 8, 4
	ctx, stop := context.WithCancel(r.Context())
	defer stop()
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		old   = map[string][]string{}
		sent  [records]int
		drain = make(chan error, 1)
		cut   atomic.Bool
	)
	for w := range writers {
		conn := r.conn()
		wg.Go(func() {
			for n := 1; ctx.Err() == nil; n++ {
				for k := w; k < records; k += writers { // each record has one writer, whose commits are its order
					if _, err := conn.Exec(r.Context(), oldInsert, fmt.Sprint(k), n); err != nil {
						t.Errorf("a writer: %v", err)
						return
					}
					sent[k] = n
				}
			}
		})
	}
	drained := make(chan struct{})
	conn := r.conn()
	wg.Go(func() {
		for batches := 0; ; batches++ {
			if batches == 10 {
				close(drained)
			}
			late := cut.Load()
			_, err := drainOnce(r.Context(), conn, true, 20, func(key, n string) {
				mu.Lock()
				defer mu.Unlock()
				old[key] = append(old[key], n)
			})
			if err != nil || late {
				drain <- err
				return
			}
		}
	})
	<-drained
	m := r.cutover()
	cut.Store(true)
	wantState(t, <-drain, "55000") // Keyline drains now
	at := r.number(`select count(*) from outbox`)
	testdb.Eventually(t, func() bool { return r.number(`select count(*) from outbox`) > at+100 }, "writers do not go on after the cut-over")
	stop()
	wg.Wait()
	for k := range records {
		key := fmt.Sprint(k)
		both := append(old[key], r.stream("activity:"+key)...)
		wantList(t, "record "+key, both, numbers(1, sent[k])...)
		if len(old[key]) == 0 || len(old[key]) == len(both) {
			t.Errorf("record %s: one of the two delivered nothing", key)
		}
	}
	t.Logf("%d rows waited at the cut-over", m.Rows)
}

// A drainer in the middle of its batch is waited for, while writers go on; one that comes meanwhile finds that it is too late.
func TestCutoverWaitsForTheBatchOfADrainerThatHoldsTheLock(t *testing.T) {
	r := prepared(t)
	r.exec(oldInsert, "7", 1)
	inBatch, finish := make(chan struct{}), make(chan struct{})
	first := make(chan error)
	conn := r.conn()
	go func() {
		_, err := drainOnce(r.Context(), conn, true, 10, func(string, string) {
			close(inBatch)
			<-finish
		})
		first <- err
	}()
	<-inBatch
	if _, err := r.open("outbox").Cutover(r.Context(), by, outbox.CutoverOptions{Patience: impatient}); !errors.Is(err, keyline.ErrUnavailable) {
		t.Fatalf("beside a batch: %v", err)
	}
	want(t, "state", r.state(), outbox.StateGuarded)
	type outcome struct {
		outbox.Moved
		error
	}
	done := make(chan outcome)
	o := r.open("outbox")
	go func() {
		m, err := o.Cutover(r.Context(), by, outbox.CutoverOptions{Patience: brisk})
		done <- outcome{m, err}
	}()
	waiting := func(n int64) func() bool {
		return func() bool {
			return r.number(`select count(*) from pg_locks where locktype = 'advisory' and not granted and database = (select oid from pg_database where datname = current_database())`) == n
		}
	}
	testdb.Eventually(t, waiting(1), "the cut-over does not wait for the drainer")
	r.exec(oldInsert, "7", 2) // a writer does not wait
	late := make(chan error)
	second := r.conn()
	go func() {
		_, err := drainOnce(r.Context(), second, true, 10, func(string, string) { t.Error("the late drainer delivered") })
		late <- err
	}()
	testdb.Eventually(t, waiting(2), "the late drainer does not wait for the cut-over")
	close(finish)
	if err := <-first; err != nil {
		t.Fatalf("the batch that was waited for: %v", err)
	}
	got := <-done
	if got.error != nil || got.Rows != 1 {
		t.Fatalf("%+v", got)
	}
	wantState(t, <-late, "55000")
	wantList(t, "stream", r.stream("activity:7"), "2")
}

// Killed anywhere, it has changed nothing: the old drainer goes on, and the next try finds all as it was.
func TestACutoverThatIsKilledChangesNothing(t *testing.T) {
	r := prepared(t)
	for n := range 3 {
		r.exec(oldInsert, "7", n+1)
	}
	for _, step := range []string{"drainers locked", "table locked", "appended", "marked", "forwarding"} {
		conn := r.conn()
		o, err := outbox.Open(conn, "", "outbox")
		if err != nil {
			t.Fatal(err)
		}
		met := false
		o.OnReached(func(s string) {
			if s == step {
				met = true
				r.exec(`select pg_terminate_backend($1, 10000)`, conn.PgConn().PID())
			}
		})
		if m, err := o.Cutover(r.Context(), by, outbox.CutoverOptions{Patience: brisk}); !errors.Is(err, keyline.ErrUnavailable) || !met {
			t.Fatalf("%s: %+v, %v, met %v", step, m, err, met)
		}
		want(t, step+": state", r.state(), outbox.StateGuarded)
		want(t, step+": events", r.number(`select count(*) from keyline.events`), 0)
		want(t, step+": waiting", r.number(`select count(*) from outbox where processed_at is null`), 3)
		want(t, step+": audits", r.number(`select count(*) from keyline.audit where action = 'outbox_cutover'`), 0)
	}
	n, err := drainOnce(r.Context(), r.conn(), true, 1, func(string, string) {})
	if err != nil || n != 1 {
		t.Fatalf("the old drainer: %d, %v", n, err)
	}
	want(t, "moved", r.cutover().Rows, 2)
	wantList(t, "stream", r.stream("activity:7"), "2", "3")
}

func TestTwoCutoversAtOnceAreOne(t *testing.T) {
	r := prepared(t)
	r.exec(oldInsert, "7", 1)
	const terminals = 4
	errs := make(chan error, terminals)
	for range terminals {
		o := r.open("outbox")
		go func() {
			_, err := o.Cutover(r.Context(), by, outbox.CutoverOptions{Patience: brisk})
			errs <- err
		}()
	}
	won := 0
	for range terminals {
		switch err := <-errs; {
		case err == nil:
			won++
		case !errors.Is(err, keyline.ErrConflict):
			t.Errorf("%v", err)
		}
	}
	want(t, "cut-overs", won, 1)
	wantList(t, "stream", r.stream("activity:7"), "1")
	want(t, "audits", r.number(`select count(*) from keyline.audit where action = 'outbox_cutover'`), 1)
}

func TestCutoverRefusesWhatWouldLoseOrderOrWriters(t *testing.T) {
	r := newRig(t, typical)
	refused := func(says string, opts outbox.CutoverOptions) {
		t.Helper()
		opts.Patience = brisk
		_, err := r.open("outbox").Cutover(r.Context(), by, opts)
		if !errors.Is(err, keyline.ErrConflict) && !errors.Is(err, keyline.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Fatalf("want %q: %v", says, err)
		}
	}
	refused("is not prepared", outbox.CutoverOptions{})
	r.prepare(settings(), false)
	refused("has no guard", outbox.CutoverOptions{})
	r.prepare(settings(), true)
	for n := range 3 {
		r.exec(oldInsert, "7", n+1)
	}
	refused("3 rows of public.outbox wait, and the limit is 2", outbox.CutoverOptions{Limit: 2})
	app := r.role("app")
	refused("these roles could not insert into public.outbox any more: "+app, outbox.CutoverOptions{})
	r.exec(`grant usage on schema keyline to ` + app + `; grant execute on all functions in schema keyline to ` + app)
	// Who may insert some columns, and who is taken on by others, or owns the function that they call.
	some, group := r.role("some"), r.role("group")
	r.exec(`revoke insert on outbox from ` + some + `; grant insert (event_type, payload) on outbox to ` + some + `; alter role ` + group + ` nologin`)
	refused("these roles could not insert into public.outbox any more: "+group+", "+some, outbox.CutoverOptions{})
	r.exec(`grant usage on schema keyline to ` + some + `, ` + group + `; grant execute on all functions in schema keyline to ` + some + `, ` + group)
	r.exec(`alter table outbox disable trigger zz_keyline_1_fill`)
	refused("triggers of public.outbox are disabled: zz_keyline_1_fill", outbox.CutoverOptions{})
	r.exec(`alter table outbox enable trigger zz_keyline_1_fill`)
	r.exec(`insert into outbox (event_type, payload) values ('', '{"activity_id": 1}')`)
	refused("1 waiting rows of public.outbox cannot be appended, such as 4: the type is blank", outbox.CutoverOptions{})
	r.exec(`update outbox set event_type = 'activity.noted' where id = 4; alter table outbox drop column attempts`)
	want(t, "events", r.number(`select count(*) from keyline.events`), 0)
	r.prepare(settings(), true)
	want(t, "moved", r.cutover().Rows, 4)
	refused("already", outbox.CutoverOptions{})
	_, err := r.open("outbox").Prepare(r.Context(), settings(func(s *outbox.Settings) { s.Key = "event_type" }), by, outbox.PrepareOptions{})
	if !errors.Is(err, keyline.ErrConflict) {
		t.Fatalf("other settings while Keyline drains: %v", err)
	}
}

// Where the columns' defaults do not tell before, the rows that wait do.
func TestCutoverRefusesADoneThatDoesNotEndPending(t *testing.T) {
	r := newRig(t, typical)
	r.prepare(settings(func(s *outbox.Settings) { s.Pending = "event_type like 'activity.%'" }), true)
	r.exec(oldInsert, "7", 1)
	_, err := r.open("outbox").Cutover(r.Context(), by, outbox.CutoverOptions{Patience: brisk})
	if !errors.Is(err, keyline.ErrInvalid) || !strings.Contains(err.Error(), "leaves rows waiting") {
		t.Fatal(err)
	}
	want(t, "events", r.number(`select count(*) from keyline.events`), 0)
}

// A row without a usable key becomes its own record, whether it waited at the cut-over or came after it.
func TestRowsWithoutAUsableKeyBecomeTheirOwnRecords(t *testing.T) {
	r := newRig(t, `create table outbox (id uuid primary key default gen_random_uuid(), created_at timestamptz not null default now(), event_type text not null, payload jsonb, processed_at timestamptz)`)
	r.prepare(settings(func(s *outbox.Settings) { s.Key = "payload->>'k'" }), true)
	insert := func() {
		r.exec(`insert into outbox (event_type, payload) values ('a', '{}'), ('a', null), ('a', '{"k": null}'), ('a', '{"k": " \t"}'), ('a', jsonb_build_object('k', repeat('x', 513)))`)
	}
	insert()
	r.exec(`alter table outbox disable trigger zz_keyline_1_fill`)
	insert() // by who knows how: the cut-over extracts by itself
	r.exec(`alter table outbox enable trigger zz_keyline_1_fill`)
	want(t, "moved", r.cutover().Rows, 10)
	insert()
	want(t, "events", r.number(`select count(*) from keyline.events where headers->>'keyline_fallback_key' = 'true'`), 15)
	want(t, "records named as their row", r.number(`select count(*) from keyline.records r join keyline.events e on e.record_id = r.id and e.id::text = r.record_key join outbox o on o.id = e.id`), 15)
}

// A table whose ids are no uuids: the record is named after the row all the same, and again the same.
func TestARecordThatIsNamedAfterANumberedRowIsNamedSoAgain(t *testing.T) {
	r := prepared(t)
	r.exec(`insert into outbox (event_type, payload) values ('a', '{}')`)
	r.cutover()
	want(t, "records", r.number(`select count(*) from keyline.records r join keyline.events e on e.record_id = r.id and r.record_key = keyline.fallback_id('', e.idempotency_key)::text`), 1)
	r.back(true)
	r.exec(`update outbox set processed_at = null`)
	want(t, "duplicates", r.cutover().Duplicates, 1)
}

// The writer needs no more than a producer has.
func TestForwardingTakesNoMoreThanAProducersRights(t *testing.T) {
	r := prepared(t)
	app := r.role("app")
	producer := func() {
		r.exec(`grant usage on schema keyline to ` + app + `; grant execute on function keyline.append to ` + app)
	}
	r.exec(`revoke all on all functions in schema keyline from public`)
	as := func() error {
		conn := r.conn()
		if _, err := conn.Exec(r.Context(), `set session authorization `+app); err != nil {
			t.Fatal(err)
		}
		_, err := conn.Exec(r.Context(), oldInsert, "7", 1)
		return err
	}
	if err := as(); err != nil {
		t.Fatalf("before the cut-over: %v", err)
	}
	producer()
	r.cutover()
	if err := as(); err != nil {
		t.Fatalf("after it: %v", err)
	}
	want(t, "events", r.number(`select count(*) from keyline.events`), 2)
}

// What Keyline was handed neither waits again nor changes, whoever tries: it would be lost without a word.
func TestWhatWasForwardedNeitherChangesNorWaitsAgain(t *testing.T) {
	r := prepared(t)
	r.exec(oldInsert, "7", 1)
	r.cutover()
	r.exec(oldInsert, "7", 2)
	for _, sql := range []string{
		`update outbox set processed_at = null where id = 1`, `update outbox set payload = '{"n": 9}' where id = 2`,
		`insert into outbox (id, event_type, payload) overriding system value values (2, 'activity.noted', '{"n": 9}') on conflict (id) do update set payload = excluded.payload`,
	} {
		_, err := r.conn().Exec(r.Context(), sql)
		wantState(t, err, "55000")
	}
	r.exec(`update outbox set attempts = 3, processed_at = now()`)
	wantList(t, "stream", r.stream("activity:7"), "1", "2")
	// A row that is put back would be done from the start, as a duplicate that nobody delivers.
	r.exec(`create table archive as select * from outbox; delete from outbox`)
	_, err := r.conn().Exec(r.Context(), `insert into outbox (id, created_at, event_type, payload) overriding system value select id, created_at, event_type, payload from archive`)
	wantState(t, err, "55000")
	r.exec(`insert into outbox overriding system value select * from archive`) // as what it is
	wantList(t, "stream", r.stream("activity:7"), "1", "2")
	// Ids that begin anew are other events, since the time is part of the idempotency key.
	r.exec(`truncate outbox restart identity`)
	r.exec(oldInsert, "7", 3)
	wantList(t, "stream", r.stream("activity:7"), "1", "2", "3")
}

// Ids that begin anew and have no time of their own are taken for those of before: the writer hears of it.
func TestAnIdThatIsUsedAgainWithoutATimeIsRefused(t *testing.T) {
	for name, created := range map[string]string{"the id": "id", "a date": "day"} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, `create table outbox (id bigint generated always as identity primary key, day date not null default current_date,
				event_type text not null, payload jsonb, processed_at timestamptz)`)
			r.prepare(settings(func(s *outbox.Settings) { s.Created, s.OccurredAt = created, "now()" }), true)
			r.cutover()
			r.exec(oldInsert, "1", 1)
			for again, state := range map[int]string{1: "55000", 2: "KL002"} { // the same event, and another
				r.exec(`truncate outbox restart identity`)
				_, err := r.conn().Exec(r.Context(), oldInsert, "1", again)
				wantState(t, err, state)
			}
			r.exec(`alter sequence outbox_id_seq restart with 100`)
			r.exec(oldInsert, "1", 3)
			wantList(t, "stream", r.stream("activity:1"), "1", "3")
		})
	}
}

func TestThereAndBackAndThereAgain(t *testing.T) {
	r := prepared(t)
	pool := r.db.NewPool(nil)
	var got []string
	work := func() {
		t.Helper()
		w, err := keyline.NewWorker(pool, keyline.Config{}, keyline.Consumer{
			Name: "noted", Types: []string{"*"}, Start: keyline.Beginning(), Effect: keyline.None(),
			Handle: func(_ context.Context, d *keyline.Delivery) error {
				var p struct{ N int }
				err := json.Unmarshal(d.Payload, &p)
				got = append(got, fmt.Sprint(p.N))
				return err
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Drain(r.Context(), keyline.DrainOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.open("outbox").Back(r.Context(), by, outbox.BackOptions{}); !errors.Is(err, keyline.ErrConflict) {
		t.Fatalf("back from nowhere: %v", err)
	}
	r.exec(oldInsert, "7", 1)
	r.cutover()
	r.exec(oldInsert, "7", 2)

	// Not delivered yet: the old drainer could overtake.
	_, err := r.open("outbox").Back(r.Context(), by, outbox.BackOptions{Settle: time.Millisecond, Patience: impatient})
	if !errors.Is(err, keyline.ErrUnavailable) || !strings.Contains(err.Error(), "1 records have events") {
		t.Fatalf("back too early: %v", err)
	}
	want(t, "state", r.state(), outbox.StateForwarding)
	work()
	want(t, "undelivered", r.back(false).Undelivered.Records, 0)
	want(t, "state", r.state(), outbox.StateGuarded)
	r.exec(oldInsert, "7", 3)
	r.exec(oldInsert, "7", 4)
	n, err := drainOnce(r.Context(), r.conn(), true, 1, func(_, n string) { got = append(got, n) })
	if err != nil || n != 1 {
		t.Fatalf("the old drainer: %d, %v", n, err)
	}
	want(t, "moved", r.cutover().Rows, 1)
	work()
	wantList(t, "deliveries", got, numbers(1, 4)...)

	// With force it goes back all the same, and says what is left.
	r.exec(oldInsert, "7", 5)
	want(t, "undelivered", r.back(true).Undelivered.Records, 1)

	// A row that somebody makes wait again is no second event.
	r.exec(`update outbox set processed_at = null where id = 5`)
	m := r.cutover()
	if m.Rows != 1 || m.Duplicates != 1 {
		t.Fatalf("%+v", m)
	}
	wantList(t, "stream", r.stream("activity:7"), "1", "2", "4", "5")
}

// Back holds writers only for a moment at a time, and goes when the last event is delivered.
func TestBackWaitsUntilKeylineHasDelivered(t *testing.T) {
	r := prepared(t)
	r.exec(oldInsert, "7", 1)
	r.cutover()
	waits := make(chan struct{}, 100)
	o := r.open("outbox")
	o.OnReached(func(step string) {
		if step == "table locked" {
			select {
			case waits <- struct{}{}:
			default:
			}
		}
	})
	done := make(chan error)
	go func() {
		_, err := o.Back(r.Context(), by, outbox.BackOptions{Settle: time.Millisecond, Patience: brisk})
		done <- err
	}()
	again := func() {
		t.Helper()
		select {
		case <-waits:
		case err := <-done:
			t.Fatalf("back did not wait: %v", err)
		}
	}
	again()
	r.exec(oldInsert, "7", 2)
	again()
	r.exec(`update keyline.records set cursor = head; delete from keyline.mailboxes`) // all is delivered
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	want(t, "state", r.state(), outbox.StateGuarded)
}

// A writer whose transaction holds a record that the cut-over needs does not die of it: the cut-over gives way, and comes again.
func TestACutoverGivesWayToAWriterThatItWouldDeadlockWith(t *testing.T) {
	r := prepared(t)
	r.exec(oldInsert, "7", 1)
	writer, err := r.conn().Begin(r.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := writer.Exec(r.Context(), `select keyline.append('activity:7', 'activity.noted', '{"n": 0}')`); err != nil {
		t.Fatal(err)
	}
	locked := make(chan struct{}, 1)
	o := r.open("outbox")
	o.OnReached(func(step string) {
		if step == "table locked" {
			select {
			case locked <- struct{}{}:
			default:
			}
		}
	})
	done := make(chan error)
	go func() {
		_, err := o.Cutover(r.Context(), by, outbox.CutoverOptions{Patience: brisk})
		done <- err
	}()
	<-locked
	if _, err := writer.Exec(r.Context(), oldInsert, "7", 2); err != nil {
		t.Fatalf("the writer: %v", err)
	}
	if err := writer.Commit(r.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	wantList(t, "stream", r.stream("activity:7"), "0", "1", "2")
}

// Names that need quotes, dropped columns, every setting, and a table in a schema of its own.
func TestATableThatIsNothingLikeTheTypicalOne(t *testing.T) {
	r := newRig(t, `
		create schema "My App";
		create table "My App"."An outbox with a name that leaves no room for more at all" (gone integer, "Id" varchar(40) primary key, pos numeric not null, "Org" text,
			kind text, v smallint, body json, meta jsonb, happened timestamptz, status text not null default 'new', ended_at timestamptz, tries int not null default 0);
		alter table "My App"."An outbox with a name that leaves no room for more at all" drop column gone`)
	const name = `"My App"."An outbox with a name that leaves no room for more at all"`
	s := outbox.Settings{
		Table: name, ID: "Id", Created: "pos", Key: `"Org" || ':' || (body->>'k') -- of the organization`, Type: "'crm.' || kind", Payload: "body",
		Tenant: `"Org"`, Headers: "meta", Version: "v", OccurredAt: "happened", Pending: "status not in ('done', 'failed')",
		Done: `status = 'done', ended_at = coalesce(ended_at, clock_timestamp()), tries = tries + 1`, KeyColumn: "Key", AtColumn: "Handed over",
	}
	insert := func(id, pos string) {
		r.exec(`insert into `+name+` ("Id", pos, "Org", kind, v, body, meta, happened) values ($1, $2::numeric, 'acme', 'x', 3, '{"k": 1}', '{"h": "y"}', '2026-01-01 00:00:00Z')`, id, pos)
	}
	insert("b", "1")
	insert("a", "1")
	insert("c", "0.5")
	if p, err := r.open(name).Probe(r.Context(), s); err != nil || !p.Ready() {
		t.Fatalf("%+v, %v", p, err)
	}
	r.prepare(s, true)
	if _, err := r.open(name).Cutover(r.Context(), by, outbox.CutoverOptions{}); err != nil {
		t.Fatal(err)
	}
	insert(strings.Repeat("d", 40), "7")
	wantList(t, "events", r.texts(`select concat_ws(' ', r.tenant, r.record_key, e.seq, e.type, e.version, e.headers, e.occurred_at at time zone 'UTC', split_part(e.idempotency_key, ':', 3))
		from keyline.events e join keyline.records r on r.id = e.record_id order by e.seq`),
		`acme acme:1 1 crm.x 3 {"h": "y"} 2026-01-01 00:00:00 c`, `acme acme:1 2 crm.x 3 {"h": "y"} 2026-01-01 00:00:00 a`,
		`acme acme:1 3 crm.x 3 {"h": "y"} 2026-01-01 00:00:00 b`, `acme acme:1 4 crm.x 3 {"h": "y"} 2026-01-01 00:00:00 `+strings.Repeat("d", 40))
	want(t, "done", r.number(`select count(*) from `+name+` where status = 'done' and ended_at is not null and tries = 1 and "Key" = 'acme:1' and "Handed over" is not null`), 4)
	if _, err := r.open(name).Back(r.Context(), by, outbox.BackOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	// A column that the functions read is not dropped from under the writers; a new name is followed.
	r.exec(`alter table ` + name + ` rename column kind to "Kind"`)
	insertRenamed := `insert into ` + name + ` ("Id", pos, "Org", "Kind", body) values ('e', 9, 'acme', 'x', '{}')`
	r.exec(insertRenamed)
	_, err := r.conn().Exec(r.Context(), `alter table `+name+` drop column body`)
	wantState(t, err, "2BP01")
}

func TestStatusSaysHowAnOutboxStands(t *testing.T) {
	r := newRig(t, typical)
	status := func() outbox.Status {
		t.Helper()
		s, err := r.open("outbox").Status(r.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if s := status(); s.State != outbox.StateUntouched || s.Settings != nil || !s.Sound() {
		t.Errorf("%+v", s)
	}
	r.prepare(settings(), true)
	r.exec(oldInsert, "7", 1)
	holder := r.conn()
	if _, err := holder.Exec(r.Context(), `select outbox_keyline_lock(session => true)`); err != nil {
		t.Fatal(err)
	}
	if s := status(); s.State != outbox.StateGuarded || s.Settings.Key != settings().Key || s.Drainers != 1 || s.Pending.Rows != 1 || s.Pending.WithoutKey != 0 || !s.Sound() {
		t.Errorf("%+v", s)
	}
	if err := holder.Close(r.Context()); err != nil {
		t.Fatal(err)
	}
	r.cutover()
	if s := status(); s.State != outbox.StateForwarding || s.Pending.Rows != 0 || s.Undelivered.Records != 1 || s.Drainers != 0 || !s.Sound() {
		t.Errorf("%+v", s)
	}
	r.exec(`alter table outbox disable trigger zz_keyline_2_accept`)
	if s := status(); s.Sound() || len(s.DisabledTriggers) != 1 {
		t.Errorf("%+v", s)
	}
}

// What --dry-run prints is what runs: run by hand, it does the same.
func TestTheSQLThatIsShownIsTheSQLThatRuns(t *testing.T) {
	r := newRig(t, typical)
	r.exec(oldInsert, "7", 1)
	conn := r.conn()
	run := func(texts []string, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		tx, err := conn.BeginTx(r.Context(), pgx.TxOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range texts {
			if _, err := tx.Exec(r.Context(), text); err != nil {
				t.Fatalf("%s: %v", text, err)
			}
		}
		if err := tx.Commit(r.Context()); err != nil {
			t.Fatal(err)
		}
	}
	run(r.open("outbox").PrepareSQL(r.Context(), settings(), outbox.PrepareOptions{Guard: true}))
	want(t, "state", r.state(), outbox.StateGuarded)
	run(r.open("outbox").CutoverSQL(r.Context()))
	want(t, "state", r.state(), outbox.StateForwarding)
	r.exec(oldInsert, "7", 2)
	wantList(t, "stream", r.stream("activity:7"), "1", "2")
	want(t, "audit", r.number(`select count(*) from keyline.audit`), 0)
}

// Nobody takes Keyline away from under a table that forwards; and where somebody does it by force, inserts fail and say why. After the
// way back they need nothing of Keyline's.
func TestATableThatForwardsKeepsKeylinesSchema(t *testing.T) {
	r := prepared(t)
	r.cutover()
	down := func() error { return migrations.To(r.Context(), r.conn(), r.db.Schema, 0) }
	if err := down(); !errors.Is(err, migrations.ErrInUse) || !strings.Contains(err.Error(), "on table outbox") {
		t.Fatalf("the way down says %v", err)
	}
	r.exec(oldInsert, "a", 1)
	wantList(t, "stream", r.stream("activity:a"), "1")
	tx, err := r.conn().Begin(r.Context())
	if err == nil {
		_, err = tx.Exec(r.Context(), `drop schema `+r.db.Schema+` cascade`)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err = tx.Exec(r.Context(), oldInsert, "a", 2); err == nil || !strings.Contains(err.Error(), r.db.Schema) {
		t.Errorf("an insert without Keyline: %v", err)
	}
	if err := tx.Rollback(r.Context()); err != nil {
		t.Fatal(err)
	}
	r.back(true)
	if err := down(); err != nil {
		t.Fatal(err)
	}
	r.exec(oldInsert, "a", 3)
	want(t, "rows that wait", r.number(`select count(*) from outbox where processed_at is null`), 1)
}
