package keyline_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
)

// age makes every event that there is, and all else that prunes look at, a hundred days old.
func age(t *testing.T, db *testdb.DB) {
	t.Helper()
	script(t, db, `alter table keyline.events disable trigger user;
		update keyline.events set created_at = created_at - interval '100 days';
		alter table keyline.events enable trigger user;
		update keyline.failures set at = at - interval '100 days';
		update keyline.workers set ended_at = ended_at - interval '100 days'`)
}

// script runs statements that have to work.
func script(t *testing.T, db *testdb.DB, text string) {
	t.Helper()
	if _, err := db.Connect().PgConn().Exec(t.Context(), text).ReadAll(); err != nil {
		t.Fatal(err)
	}
}

// sound fails unless the installation is.
func sound(t *testing.T, o keyline.Operator) {
	t.Helper()
	if v := must(o.Verify(t.Context(), keyline.VerifyOptions{}))(t); !v.OK {
		t.Errorf("%+v", v)
	}
}

func eventsOf(t *testing.T, db *testdb.DB, record string) []int64 {
	t.Helper()
	return scalar[[]int64](t, db.Pool(), `select coalesce(array_agg(e.seq order by e.seq), '{}') from keyline.events e
		join keyline.records r on r.id = e.record_id where r.record_key = $1`, record)
}

// aged is an installation in which a consumer "c" is done with four old events of thing:1; no worker runs.
func aged(t *testing.T) *testdb.DB {
	t.Helper()
	db, s := testdb.New(t), newSeen()
	w := startWorker(t, db, keyline.Config{}, recording(s, "c"))
	appendN(t, db, "thing:1", 4)
	s.wait(t, 4)
	settled(t, db)
	stop(t, w)
	age(t, db)
	return db
}

func TestAPruneIsToldWhichTimeIsNegative(t *testing.T) {
	t.Parallel()
	o := newOperator(t, testdb.New(t), keyline.RoleOperator)
	for field, opts := range map[string]keyline.PruneOptions{
		"OlderThan": {OlderThan: -time.Hour}, "KeepFailures": {KeepFailures: -time.Hour},
	} {
		_, err := o.Prune(t.Context(), "r", opts)
		if got := wantError(t, err, keyline.ErrInvalid, keyline.CodeInvalidArgument).Field; got != field {
			t.Errorf("%s is negative, and the error is about %s", field, got)
		}
	}
}

func TestPruneDeletesOldSettledEventsAndTheRecordGoesOn(t *testing.T) {
	t.Parallel()
	db, client := aged(t), newClient(t, keyline.ClientConfig{})
	o := newOperator(t, db, keyline.RoleOperator)
	keyed := keyline.NewEvent{Key: keyline.Key{Record: "thing:1"}, Type: "thing.done", IdempotencyKey: "once"}
	must(client.Append(t.Context(), db.Pool(), keyed))(t) // young

	dry := must(o.Prune(t.Context(), "", keyline.PruneOptions{DryRun: true}))(t)
	if !dry.DryRun || dry.Events != 4 || dry.Records != 1 || dry.Workers != 1 || dry.Before.IsZero() || len(eventsOf(t, db, "thing:1")) != 5 {
		t.Fatalf("%+v", dry)
	}
	if list := must(o.Audit(t.Context(), keyline.AuditFilter{Action: "prune"}))(t); len(list) != 0 {
		t.Errorf("a dry run is in the audit: %+v", list)
	}
	r := must(o.Prune(t.Context(), "space", keyline.PruneOptions{}))(t)
	if r.DryRun || r.Events != 4 || r.Records != 1 || r.Workers != 1 || len(r.HeldBack) != 0 {
		t.Errorf("%+v", r)
	}
	if got := eventsOf(t, db, "thing:1"); !slices.Equal(got, []int64{5}) {
		t.Errorf("left: %v", got)
	}
	sound(t, o)
	line := must(o.Audit(t.Context(), keyline.AuditFilter{Action: "prune"}))(t)
	if len(line) != 1 || line[0].Actor != "olga" || line[0].Reason != "space" || line[0].Detail["events"] != 4.0 || line[0].Detail["workers"] != 1.0 {
		t.Errorf("audit: %+v", line)
	}
	if r = must(o.Prune(t.Context(), "", keyline.PruneOptions{}))(t); r.Events+r.Records+r.Workers != 0 {
		t.Errorf("again: %+v", r)
	}

	// Seqs go on, what is left is delivered, and a consumer that begins at the beginning gets what there is.
	if a := must(client.Append(t.Context(), db.Pool(), keyed))(t); !a.Duplicate || a.Seq != 5 {
		t.Errorf("%+v", a)
	}
	seq := int64(5)
	a := must(client.Append(t.Context(), db.Pool(), keyline.NewEvent{Key: keyed.Key, Type: "thing.done", ExpectedSeq: &seq}))(t)
	if a.Seq != 6 {
		t.Errorf("%+v", a)
	}
	s := newSeen()
	w := startWorker(t, db, keyline.Config{}, recording(s, "c"), recording(s, "new", func(c *keyline.Consumer) { c.Start = keyline.Beginning() }))
	s.wait(t, 4)
	settled(t, db)
	stop(t, w)
	if old, young := seqs(s.of("c", "thing:1")), seqs(s.of("new", "thing:1")); !slices.Equal(old, []int64{5, 6}) || !slices.Equal(young, []int64{5, 6}) {
		t.Errorf("c got %v, new %v", old, young)
	}
	// Then all of them: the record stays, and counts on.
	age(t, db)
	if r = must(o.Prune(t.Context(), "", keyline.PruneOptions{}))(t); r.Events != 2 {
		t.Errorf("%+v", r)
	}
	sound(t, o)
	if a := must(client.Append(t.Context(), db.Pool(), keyed))(t); a.Duplicate || a.Seq != 7 {
		t.Errorf("a pruned key is forgotten, and the record's seq is not: %+v", a)
	}
	sound(t, o)
	if _, err := db.Pool().Exec(t.Context(), "delete from keyline.events"); err == nil {
		t.Error("events can be deleted past the one function")
	}
}

// hold finds a reason in a report.
func hold(r keyline.PruneReport, reason, consumer string) keyline.PruneHold {
	for _, h := range r.HeldBack {
		if h.Reason == reason && h.Consumer == consumer {
			return h
		}
	}
	return keyline.PruneHold{}
}

func TestPruneNeverTakesWhatIsNeededAndSaysWhatHoldsItBack(t *testing.T) {
	t.Parallel()
	const row = `insert into keyline.checkpoints (record_id, consumer_id, seq, state) values (1, 1, 2, 'ready')`
	const dead = `insert into keyline.dead_letters (record_id, seq, consumer_id, event_id, attempt, reason, error_code, first_failed_at, failed_at, status, due_at, resolved_at)
		select record_id, seq, 1, id, 1, 'permanent', 'x', now(), now(), `
	for _, c := range []struct {
		name, stage              string
		reason, consumer, status string
		from                     int64 // the first event that is kept
	}{
		{"a waiting consumer", row, "consumer", "c", "active", 3},
		{"a paused consumer", row + `; update keyline.consumers set status = 'paused'`, "consumer", "c", "paused", 3},
		{"a paused consumer without a row", `update keyline.consumers set status = 'paused'; update keyline.records set cursor = 1`, "consumer", "c", "paused", 2},
		{"a backfill that has not come to the record", `update keyline.consumers set status = 'backfilling', start_kind = 'beginning'`, "consumer", "c", "backfilling", 1},
		{"a backfill from a time", `update keyline.consumers set status = 'backfilling', start_kind = 'at', start_time = (select created_at from keyline.events where seq = 4)`,
			"consumer", "c", "backfilling", 4},
		{"a backfill that has come to it", row + `; update keyline.consumers set status = 'backfilling', start_kind = 'beginning'`, "consumer", "c", "backfilling", 3},
		{"an open dead letter", dead + `'open', null, null from keyline.events where seq = 2`, "dead_letter", "c", "open", 2},
		{"an open dead letter of a retired consumer", dead + `'open', null, null from keyline.events where seq = 2; update keyline.consumers set status = 'retired'`, "dead_letter", "c", "open", 2},
		{"a dead letter to be delivered again", dead + `'retrying', now(), null from keyline.events where seq = 3`, "dead_letter", "c", "retrying", 3},
		{"a command", dead + `'resolved', null, now() from keyline.events where seq = 3;
			select keyline.command(1, 'retry_dead_letter', 1, 0, (select id from keyline.dead_letters), 'me', '', '')`, "command", "c", "retry_dead_letter", 3},
		{"a command about a seq", `select keyline.command(1, 'skip', 1, 2, null, 'me', '', '')`, "command", "c", "skip", 2},
		{"nobody to settle it", `update keyline.consumers set status = 'disabled'; update keyline.records set cursor = 1`, "unsettled", "", "", 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			db := aged(t)
			script(t, db, c.stage)
			o := newOperator(t, db, keyline.RoleOperator)
			dry := must(o.Prune(t.Context(), "", keyline.PruneOptions{DryRun: true}))(t)
			r := must(o.Prune(t.Context(), "", keyline.PruneOptions{}))(t)
			h := hold(r, c.reason, c.consumer)
			if len(r.HeldBack) != 1 || h.Status != c.status || h.Events != 5-c.from || h.Records != 1 || len(h.Sample) != 1 ||
				h.Sample[0] != (keyline.HeldRecord{Record: "thing:1", Seq: c.from}) {
				t.Errorf("%+v", r)
			}
			if r.Events != c.from-1 || dry.Events != r.Events || dry.Records != r.Records || hold(dry, c.reason, c.consumer).Events != h.Events {
				t.Errorf("%+v, and a dry run %+v", r, dry)
			}
			if got := eventsOf(t, db, "thing:1"); len(got) == 0 || got[0] != c.from {
				t.Errorf("left: %v", got)
			}
		})
	}
}

func TestPruneLeavesWhatWorkersAreStuckOn(t *testing.T) {
	t.Parallel()
	db := verified(t) // a parked head, a backoff, a paused consumer
	age(t, db)
	o := newOperator(t, db, keyline.RoleOperator)
	r := must(o.Prune(t.Context(), "", keyline.PruneOptions{}))(t)
	for _, c := range []struct{ reason, consumer, status string }{
		{"consumer", "parks", "active"}, {"consumer", "waits", "active"}, {"consumer", "rests", "paused"}, {"dead_letter", "parks", "open"},
	} {
		if h := hold(r, c.reason, c.consumer); h.Status != c.status || h.Events == 0 || len(h.Sample) == 0 {
			t.Errorf("%s of %s: %+v", c.reason, c.consumer, r.HeldBack)
		}
	}
	if r.Events != 0 || r.Failures == 0 {
		t.Errorf("%+v", r)
	}
	sound(t, o)
	// And on they go, once they can.
	s := newSeen()
	startWorker(t, db, keyline.Config{}, recording(s, "fine"), recording(s, "rests"), recording(s, "parks", park, slow), recording(s, "waits", backoff))
	if err := o.ResumeConsumer(t.Context(), "rests", ""); err != nil {
		t.Fatal(err)
	}
	must(o.RetryDeadLetters(t.Context(), keyline.DeadLetterFilter{}, "", keyline.BulkOptions{}))(t)
	testdb.Eventually(t, func() bool {
		return scalar[int](t, db.Pool(), "select count(*) from keyline.positions where consumer in ('rests', 'parks') and seq < head") == 0
	}, "both are done")
	if got := seqs(s.of("parks", "thing:1")); !slices.Equal(got, []int64{1, 2}) {
		t.Errorf("parks got %v", got)
	}
	if got := seqs(s.of("rests", "thing:1")); len(got) == 0 || got[len(got)-1] != 2 {
		t.Errorf("rests got %v", got)
	}
}

// slow is the retry policy of a switched consumer.
func slow(c *keyline.Consumer) { c.Retry = quick() }

func TestPruneTakesWithAnEventWhatSpeaksOfIt(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSwitched()
	skips := recording(s.seen, "skips", func(c *keyline.Consumer) {
		c.Handle = func(context.Context, *keyline.Delivery) error { return keyline.Skip("not for us") }
	})
	w := startWorker(t, db, keyline.Config{}, s.consumer("c"), skips)
	appendN(t, db, "thing:1", 1)
	deadLetters(t, db, 1)
	o := newOperator(t, db, keyline.RoleOperator)
	must(o.ResolveDeadLetter(t.Context(), 1, "enough"))(t)
	settled(t, db)
	stop(t, w)
	age(t, db)
	r := must(o.Prune(t.Context(), "", keyline.PruneOptions{}))(t)
	if r.Events != 1 || r.DeadLetters != 1 || r.Skips != 1 {
		t.Errorf("%+v", r)
	}
	for _, table := range []string{"events", "dead_letters", "skips", "failures", "workers"} {
		if n := scalar[int](t, db.Pool(), "select count(*) from keyline."+table); n != 0 {
			t.Errorf("%d %s are left", n, table)
		}
	}
	sound(t, o)
	// What the worker had counted is still counted.
	if c := must(o.InspectConsumer(t.Context(), "c"))(t); c.Failed != 1 || c.Dead != 1 || c.LastFailureAt == nil {
		t.Errorf("%+v", c)
	}
	if c := must(o.InspectConsumer(t.Context(), "skips"))(t); c.Skipped != 1 {
		t.Errorf("%+v", c)
	}
}

func TestPruneKeepsHistoryForAsLongAsItSays(t *testing.T) {
	t.Parallel()
	db := verified(t)
	script(t, db, `insert into keyline.workers (name, instance, host, pid, status, lease, ended_at) values
		('live', gen_random_uuid(), 'h', 1, 'live', '15 s', null), ('recent', gen_random_uuid(), 'h', 1, 'lost', '15 s', now() - interval '6 days'),
		('holds', gen_random_uuid(), 'h', 1, 'lost', '15 s', now() - interval '8 days'), ('gone', gen_random_uuid(), 'h', 1, 'lost', '15 s', now() - interval '8 days');
		update keyline.mailboxes set claimed_by = (select id from keyline.workers where name = 'holds'), claimed_at = now(), wants = null, wants_due_at = null where record_id = 1;
		update keyline.failures set at = now() - interval '6 days' where seq = 1 and record_id = 1;
		update keyline.failures set at = now() - interval '8 days' where record_id = 2`)
	o := newOperator(t, db, keyline.RoleOperator)
	before := scalar[int64](t, db.Pool(), "select count(*) from keyline.failures where record_id = 2")
	r := must(o.Prune(t.Context(), "", keyline.PruneOptions{}))(t)
	if r.Workers != 1 || r.Failures != before || before == 0 {
		t.Errorf("%+v, %d old failures", r, before)
	}
	if names := scalar[[]string](t, db.Pool(), "select array_agg(name order by id) from keyline.workers where host = 'h'"); !slices.Equal(names, []string{"live", "recent", "holds"}) {
		t.Errorf("left: %v", names)
	}
	r = must(o.Prune(t.Context(), "", keyline.PruneOptions{KeepFailures: 5 * 24 * time.Hour}))(t)
	if r.Workers != 1 || r.Failures == 0 || scalar[int](t, db.Pool(), "select count(*) from keyline.failures") != 0 {
		t.Errorf("%+v", r)
	}
}

func TestVerifyStillNoticesAHoleInAPrunedRecord(t *testing.T) {
	t.Parallel()
	const off = `alter table keyline.events disable trigger user; `
	for name, corrupt := range map[string]string{
		"the first that should be left is missing": off + `delete from keyline.events where seq = 3`,
		"one in the middle is missing":             off + `delete from keyline.events where seq = 4`,
		"the last is missing":                      off + `delete from keyline.events where seq = 5`,
		"all are missing":                          off + `delete from keyline.events`,
		"one that was pruned is there":             off + `insert into keyline.events select record_id, 1, gen_random_uuid(), type, version, payload, headers, null, occurred_at, created_at from keyline.events limit 1`,
		"nothing says that they were pruned":       `delete from keyline.pruned`,
		"too much is said to be pruned":            `update keyline.pruned set seq = 4`,
		"more than there was is said to be pruned": off + `delete from keyline.events; update keyline.pruned set seq = 9`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := aged(t)
			appendN(t, db, "thing:1", 1)
			script(t, db, `insert into keyline.checkpoints (record_id, consumer_id, seq, state) values (1, 1, 2, 'ready')`)
			o := newOperator(t, db, keyline.RoleOperator)
			if r := must(o.Prune(t.Context(), "", keyline.PruneOptions{}))(t); r.Events != 2 {
				t.Fatalf("%+v", r)
			}
			sound(t, o)
			script(t, db, corrupt)
			v := must(o.Verify(t.Context(), keyline.VerifyOptions{}))(t)
			if v.OK || v.Checks[0].Name != "seqs_gapless" || v.Checks[0].Violations != 1 {
				t.Errorf("%+v", v)
			}
		})
	}
}

func TestPruneOfManyGoesInChunks(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	// One record that takes several chunks by its events, and many that do by their number; the last is held.
	script(t, db, `insert into keyline.records (tenant, record_key, head, cursor) select '', 'r' || i, case i when 5 then 4500 else 1 end, case i when 5 then 4500 else 1 end from generate_series(1, 2500) i;
		insert into keyline.events select r.id, s, gen_random_uuid(), 't', 1, '{}', '{}', null, now() - interval '100 days', now() - interval '100 days'
			from keyline.records r cross join generate_series(1, r.head) s;
		update keyline.records set cursor = 0 where record_key = 'r2500';
		insert into keyline.mailboxes (record_id, due_at) select id, now() from keyline.records where cursor = 0`)
	o := newOperator(t, db, keyline.RoleOperator)
	chunks := 0
	r := must(o.Prune(t.Context(), "", keyline.PruneOptions{Progress: func(r keyline.PruneReport) { chunks++ }}))(t)
	if r.Events != 4500+2498 || r.Records != 2499 || chunks < 5 || hold(r, "unsettled", "").Events != 1 {
		t.Errorf("%+v in %d chunks", r, chunks)
	}
	line := must(o.Audit(t.Context(), keyline.AuditFilter{Action: "prune"}))(t)
	if len(line) != 1 || line[0].Detail["events"] != float64(r.Events) || line[0].Detail["records"] != float64(r.Records) {
		t.Errorf("audit: %+v", line)
	}
	sound(t, o)
}

func TestPruneIsSafeBesideLiveTraffic(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	tx := recording(s, "tx", func(c *keyline.Consumer) {
		c.Effect, c.Handle = keyline.Database(), nil
		c.HandleTx = func(_ context.Context, _ pgx.Tx, d *keyline.Delivery) error { s.add(d); return nil }
	})
	startWorker(t, db, keyline.Config{}, recording(s, "c"), tx, failing("parks", park, slow))
	o := newOperator(t, db, keyline.RoleOperator)
	const rounds = 10
	for range rounds {
		for _, key := range []string{"a", "b", "c"} {
			appendN(t, db, key, 3)
		}
		must(o.Prune(t.Context(), "", keyline.PruneOptions{OlderThan: time.Microsecond}))(t)
		sound(t, o)
	}
	s.wait(t, 2*rounds*9)
	for _, consumer := range []string{"c", "tx"} {
		inOrder(t, s.of(consumer, "a"), 3*rounds)
	}
	// The parked consumer still has all that it needs.
	if n := scalar[int](t, db.Pool(), "select count(*) from keyline.events"); n != rounds*9 {
		t.Errorf("%d events are left", n)
	}
	deadLetters(t, db, 3)
	if err := o.RetireConsumer(t.Context(), "parks", "enough"); err != nil {
		t.Fatal(err)
	}
	testdb.Eventually(t, func() bool { // a run that had begun before may park it once more
		_, err := o.ResolveDeadLetters(t.Context(), keyline.DeadLetterFilter{}, "enough", keyline.BulkOptions{})
		return errors.Is(err, &keyline.Error{Code: keyline.CodeNothingToDo}) && scalar[int](t, db.Pool(), "select count(*) from keyline.mailboxes") == 0
	}, "the last dead letters are resolved")
	settled(t, db)
	if r := must(o.Prune(t.Context(), "", keyline.PruneOptions{OlderThan: time.Microsecond}))(t); r.Events != rounds*9 {
		t.Errorf("%+v", r)
	}
	sound(t, o)
}

func TestPruneWaitsForAConsumerThatIsBeingRegistered(t *testing.T) {
	t.Parallel()
	db := aged(t)
	tx := must(db.Connect().Begin(t.Context()))(t)
	exec(t, tx, "select pg_advisory_xact_lock(keyline.barrier_key())")
	exec(t, tx, "update keyline.consumers set status = 'backfilling', start_kind = 'beginning'")
	o := newOperator(t, db, keyline.RoleOperator)
	ended := make(chan keyline.PruneReport, 1)
	go func() {
		r, err := o.Prune(t.Context(), "", keyline.PruneOptions{})
		if err != nil {
			t.Error(err)
		}
		ended <- r
	}()
	testdb.Eventually(t, func() bool {
		return scalar[bool](t, db.Pool(), "select exists (select from pg_locks l where l.locktype = 'advisory' and not l.granted and l.database = (select oid from pg_database where datname = current_database()))")
	}, "the prune waits")
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := <-ended; r.Events != 0 || hold(r, "consumer", "c").Events != 4 {
		t.Errorf("%+v", r)
	}
}

func TestPruneTakesARoleAnActorAndSense(t *testing.T) {
	t.Parallel()
	db := aged(t)
	_, err := newOperator(t, db, keyline.RoleViewer).Prune(t.Context(), "", keyline.PruneOptions{})
	wantError(t, err, nil, keyline.CodePermissionDenied)
	_, err = must(keyline.NewOperator(db.Pool(), keyline.OperatorConfig{Role: keyline.RoleOperator}))(t).Prune(t.Context(), "", keyline.PruneOptions{})
	wantError(t, err, keyline.ErrInvalid, keyline.CodeInvalidArgument)
	_, err = newOperator(t, db, keyline.RoleOperator).Prune(t.Context(), "", keyline.PruneOptions{OlderThan: -time.Hour})
	wantError(t, err, keyline.ErrInvalid, keyline.CodeInvalidArgument)
	if n := len(eventsOf(t, db, "thing:1")); n != 4 {
		t.Errorf("%d events are left", n)
	}
}
